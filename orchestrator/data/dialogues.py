"""Dialogues to learn from, and the experts of the environments, who give some."""

from dataclasses import dataclass

from envs.catalog import environment
from envs.core.task import Message, Task
from orchestrator.mixture import Draw, Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A prompt and the messages that follow it, assistant's and others' in turn."""

    task: Task
    reply: tuple[Message, ...]


class Demonstrations:
    """Expert dialogues of the environments' generated tasks, in the mixture's shares."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._draws: list[Draw] = []
        for name in mixture.envs:
            task = mixture.task(Draw(env=name, index=0))
            demonstrate, why = environment(task.kind).demonstrate, ""
            try:
                has = demonstrate is not None and bool(demonstrate(task))
            except ValueError as error:  # with these options it has none
                has, why = False, f" ({error})"
            if not has:
                raise ValueError(
                    f"environment {name!r} has no demonstrations{why}; set sft.data to a chat file, or sft.shares.{name}=0"
                )

    def dialogue(self, index: int) -> Dialogue:
        """The dialogue at a position of the mixture's order."""
        while len(self._draws) <= index:
            self._draws.append(self._mixture.draw())
        task = self._mixture.task(self._draws[index])
        if task.fault:
            raise ValueError(f"environment {task.env!r} has no demonstration here: {task.fault}")
        demonstrate = environment(task.kind).demonstrate
        assert demonstrate is not None
        return Dialogue(task=task, reply=tuple(demonstrate(task)))
