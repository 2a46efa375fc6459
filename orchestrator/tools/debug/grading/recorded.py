"""Recorded answers of a run, graded again: the run's tasks with the sampled turns."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from temper.envs.core.errors import EnvironmentFault, Failure, failure_of
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import Mode, Thinking
from temper.envs.env_episode import EnvEpisode
from temper.envs.source import SizedSource, distinct_tasks, open_source
from temper.orchestrator.loop.shaping import earned_reward
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.event_log import parse_row
from temper.orchestrator.run.folder import RunDir, parse_lines
from temper.rollout.episodes.episode import LIMITS
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import TOKEN_LIMITS, Stop

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegradedAnswer:
    """A recorded answer and its score of now. `recorded` is its reward then, without the part that the run added."""

    row: int
    recorded: float | None
    reward: float | None
    parts: dict[str, float]
    detail: str
    failure: Failure | None = None

    @property
    def agrees(self) -> bool:
        """Whether the score is the same."""
        if self.recorded is None or self.reward is None:
            return self.recorded is self.reward
        return math.isclose(self.recorded, self.reward, abs_tol=1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        failure = None if self.failure is None else {"type": self.failure.kind.value, "message": self.failure.message}
        return asdict(self) | {"agrees": self.agrees, "failure": failure}


class RecordedTasks:
    """The tasks of one trajectory file, rebuilt from the run's configuration and event log."""

    def __init__(self, file: Path, rows: list[Row]) -> None:
        """Raise `ValueError` if the file is not in a run that has its configuration."""
        self._run = RunDir(file.resolve().parent.parent)
        if file.resolve().parent != self._run.trajectories or not self._run.config.is_file():
            raise ValueError(f"{file} is not in the folder `trajectories` of a run with a config.yaml")
        self._config = load_config(self._run.config, [])
        self._stage = file.stem.rpartition("-")[0]
        self._instance = next((one for one in self._config.instances if one.name == self._stage), None)
        self._rows = rows
        self._indices = self._admitted() if self._instance is not None else {}
        self._heldout: dict[str, dict[str, Task]] = {}
        self._training: dict[str, SizedSource] = {}

    def renderer(self) -> Renderer:
        """Return the renderer of the run's model."""
        model = self._run.state().model
        if model is None:
            raise ValueError(f"{self._run.root} has no model, whose tokenizer is needed to read the turns")
        return Renderer(load_tokenizer(self._run.root / model), self._config.rollout.thinking)

    def task(self, row: Row) -> Task:
        """Rebuild the task of a row. Raise `ValueError` if the run does not record how, or if another task comes out."""
        task = self._drawn(row) if self._instance is not None else self._of_evaluation(row["env"]).get(row["key"])
        if task is None or (task.key, list(task.messages)) != (row["key"], row["messages"]):
            raise ValueError(
                f"task {row['key']} of {row['env']} cannot be rebuilt: the configuration, the data or the "
                f"environment has changed since"
            )
        mode, budget = row["thinking"]["mode"], row["thinking"]["budget"]
        return replace(task, thinking=Thinking(mode=Mode(mode), budget=budget))

    def _drawn(self, row: Row) -> Task | None:
        assert self._instance is not None
        index = self._indices.get(row["ticket"])
        if index is None:
            return None
        name, seed = row["env"], self._instance.seed(self._config.seed)
        if name not in self._training:
            self._training[name] = open_source(self._config.environments[name], split="train", seed=seed)
        return self._training[name].task(index)

    def _of_evaluation(self, name: str) -> dict[str, Task]:
        if name not in self._heldout:
            source = open_source(self._config.environments[name], split="heldout", seed=self._config.seed)
            count = len({row["key"] for row in self._rows if row["env"] == name})
            self._heldout[name] = {task.key: task for task in distinct_tasks(source, count)}
        return self._heldout[name]

    def _admitted(self) -> dict[int, int]:
        """Return the index of each ticket's task in its environment's source, from the event log."""
        if not self._run.event_log.is_file():
            return {}
        text = self._run.event_log.read_text(encoding="utf-8")
        rows = [row for _, row in parse_lines(text, self._run.event_log, parse_row)]
        of_stage = (row for row in rows if row.stage == self._stage and row.event == "admitted")
        return {row.ticket: row.index for row in of_stage if row.ticket is not None and row.index is not None}


def regrade(file: Path, rows: list[Row], wanted: list[int]) -> Iterator[RegradedAnswer]:
    """Yield the wanted rows, by their numbers, with the scores of now. Raise `ValueError` as `RecordedTasks` does.

    An agent's episode becomes a failure, since its result is not recorded.
    """
    tasks = RecordedTasks(file, rows)
    renderer = tasks.renderer()
    for number in wanted:
        row = rows[number]
        task = tasks.task(row)
        recorded = None if row["reward"] is None else earned_reward(row["reward"], row["parts"])
        found = RegradedAnswer(row=number, recorded=recorded, reward=None, parts={}, detail="")
        try:
            if task.env.settings.agent is not None:
                raise EnvironmentFault(f"{task.env.settings.agent} played it, whose result is not recorded")
            result = _replay(task, row, renderer)
        except Exception as error:  # any error of the environment
            yield replace(found, failure=failure_of(error))
        else:
            score = result.score
            yield replace(found, reward=result.reward, parts=score.parts, detail=score.detail)


def _replay(task: Task, row: Row, renderer: Renderer) -> StepResult:
    """Replay the recorded turns, and truncate the episode at the recorded place."""
    episode, stop, ids = EnvEpisode(task), Stop(row["stop"]), list[int]()
    try:
        episode.begin()
        for number, turn in enumerate(row["turns"], start=1):
            ids += turn["context_ids"]
            parsed = renderer.parse(turn["text"], task, ids)
            cut = LIMITS[stop] if stop in TOKEN_LIMITS and number == len(row["turns"]) else ""
            result = episode.step(parsed, limit=cut)
            if result.done:
                return result
            if not task.env.replays and list(result.messages) != turn["observation"]:
                raise EnvironmentFault(f"the environment's response to turn {number} changed")
            ids += turn["sampled_ids"]
        if not task.env.replays and stop is Stop.ENV:
            raise EnvironmentFault("the environment did not end with the recorded turns")
        return episode.truncate(LIMITS.get(stop, "at the end of the record"))
    finally:
        episode.close()
