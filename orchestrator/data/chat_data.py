"""Dialogues as training data: demonstrations of the environments, and the tokenisation of all dialogues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import Call
from temper.learner.batches.samples import TrainingSample
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.episodes.renderer import PARTS, Renderer
from temper.rollout.formats.messages import REASONING, one_call_a_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A prompt and the messages after it, from the assistant and others."""

    task: Task
    reply: tuple[Message, ...]


def has_reasoning(message: Message) -> bool:
    return bool((message.get(REASONING) or "").strip())


def without_reasoning(reply: Sequence[Message]) -> tuple[Message, ...]:
    return tuple({**message, REASONING: ""} if has_reasoning(message) else message for message in reply)


class Demonstrations:
    """Expert dialogues of the environments' generated tasks, in the mixture's shares."""

    def __init__(self, mixture: Mixture, envs: Mapping[str, BoundEnv]) -> None:
        """Raise `ValueError` for an environment without demonstrations, or without any for its options."""
        self._mixture, self._envs = mixture, envs
        self._draws: list[Draw] = []
        for name in mixture.envs:
            task = mixture.task(Draw(env=name, index=0))
            demonstrate, why = envs[name].definition.demonstrate, ""
            try:
                has = demonstrate is not None and bool(demonstrate(task))
            except ValueError as error:  # none with these options
                has, why = False, f" ({error})"
            if not has:
                raise ValueError(
                    f"environment {name!r} has no demonstrations{why}; set sft.data to a chat file, or sft.shares.{name}=0"
                )

    def dialogue(self, index: int) -> Dialogue:
        """Return the dialogue at a position of the mixture's order."""
        while len(self._draws) <= index:
            self._draws.append(self._mixture.draw())
        draw = self._draws[index]
        task = self._mixture.task(draw)
        if task.fault:
            raise ValueError(f"environment {draw.env!r} has no demonstration of this task: {task.fault}")
        demonstrate = self._envs[draw.env].definition.demonstrate
        assert demonstrate is not None
        reply = tuple(demonstrate(task))
        return Dialogue(task=task, reply=reply if task.thinks else without_reasoning(reply))


class DialogueTokenizer:
    """Makes training samples of dialogues. Ids are as the engine would see them, and reasoning is cut as in a rollout."""

    def __init__(
        self, renderer: Renderer, tags: ThinkingTags | None, thinking: ThinkingConfig, *, train_closing: bool = False
    ) -> None:
        self._renderer = renderer
        self._tags = tags
        self._thinking = thinking
        self._train_closing = train_closing

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, thinking: ThinkingConfig, *, train_closing: bool = False
    ) -> "DialogueTokenizer":
        """Return the tokenizer of dialogues for a model's tokenizer."""
        tags = ThinkingTags.find(tokenizer, closing=thinking.closing)
        return cls(Renderer(tokenizer, thinking), tags, thinking, train_closing=train_closing)

    @property
    def reads_reasoning(self) -> bool:
        """Whether the model has reasoning tags. Otherwise they are plain text."""
        return self._tags is not None

    def dropped(self, dialogue: Dialogue) -> list[str]:
        """List the parts of a dialogue that the chat template would omit silently."""
        messages = [*dialogue.task.messages, *dialogue.reply]
        parts = {message["role"] for message in messages} & PARTS.keys()
        parts |= {"tool_calls"} if any(message.get("tool_calls") for message in messages) else set()
        parts |= {"tools"} if dialogue.task.tools else set()
        return sorted(part for part in parts if self._renderer.drops(part))

    def breaks_tags(self, dialogue: Dialogue) -> bool:
        """Return whether a dialogue contains tags of the chat template, which are broken wherever they occur."""
        return self._renderer.breaks_tags([*dialogue.task.messages, *dialogue.reply])

    def context_turns(self, dialogue: Dialogue) -> int:
        """Return the number of the assistant's turns that are not trained, because they are not in the prompt's mode."""
        return sum(
            message["role"] == "assistant" and not self._is_in_mode(message, dialogue)
            for message in self._reply(dialogue)
        )

    def _is_in_mode(self, message: Message, dialogue: Dialogue) -> bool:
        """Return whether a turn has reasoning exactly if its prompt asks for it.

        A thinking prompt before an answer with an empty thought would teach the model not to think. A reply without any
        reasoning has the mode that its environment set.
        """
        reasons = dialogue.task.thinks and any(map(has_reasoning, dialogue.reply))
        return self._tags is None or has_reasoning(message) == reasons

    def _reply(self, dialogue: Dialogue) -> Sequence[Message]:
        return dialogue.reply if self._renderer.format.parallel else one_call_a_turn(dialogue.reply)

    def thinking_tokens(self, message: Message) -> int:
        """Return the number of reasoning tokens of a message."""
        return len(self._renderer.encode(message["reasoning_content"]))

    def sample(self, dialogue: Dialogue) -> TrainingSample:
        """Return a dialogue as a training sample. Only the assistant's tokens are trained, without the opening of its turn.

        A turn that is not in the mode of the prompt is context.
        """
        thinks = dialogue.task.thinks
        ids = list(self._renderer.prompt_ids(dialogue.task))
        trained_T = [False] * len(ids)
        step_evaluations: list[Message] = []
        made: list[Call] = []
        left = dialogue.task.thinking.budget
        for number, message in enumerate(self._reply(dialogue)):
            if message["role"] != "assistant":
                step_evaluations.append(message)
                continue
            if number:
                opening = self._renderer.observation_ids(step_evaluations, thinks=thinks, calls=made, after=ids)
                ids += opening
                trained_T += [False] * len(opening)
                step_evaluations = []
            trains = self._is_in_mode(message, dialogue)
            turn, own, thinking_tokens = self._turn(message, ids, thinks=thinks, budget=left, is_context=not trains)
            made = _calls(message)
            ids += turn
            trained_T += own if trains and message.get("train", True) else [False] * len(own)
            if left is not None and self._thinking.scope == "episode":
                left = max(0, left - thinking_tokens)
        return TrainingSample.supervised(ids=ids, trained_T=trained_T)

    def _turn(
        self, message: Message, before: list[int], *, thinks: bool, budget: int | None, is_context: bool
    ) -> tuple[tuple[int, ...], list[bool], int]:
        """Return the ids of one turn cut to the budget, which of them are trained, and its reasoning length."""
        text = self._renderer.answer_text(message, thinks=thinks, context_ids=before, is_context=is_context)
        if budget is None or self._tags is None or self._tags.tags.closing not in text:
            ids = self._renderer.encode(text)
            return ids, [True] * len(ids), 0
        reasoning, found, answer_text = text.partition(self._tags.closing)
        if not found:  # the configuration ends reasoning with another text than the chat template
            reasoning, _, answer_text = text.partition(self._tags.tags.closing)
            reasoning, answer_text = reasoning.rstrip("\n"), answer_text.lstrip("\n")
        reasoning_ids, answer = self._renderer.encode(reasoning), self._renderer.encode(answer_text)
        limit, opened = ThinkingLimit(tokens=budget, grace=self._thinking.grace), self._tags.is_opened_by(before)
        close = self._tags.forced_end(reasoning_ids, limit, opened=opened)
        begin = self._tags.thinking_start(reasoning_ids, opened=opened) or 0
        if close is None:
            ids = self._renderer.encode(text)
            return ids, [True] * len(ids), len(reasoning_ids) - begin
        kept = reasoning_ids[: close.start]
        own = [True] * len(kept) + [self._train_closing] * len(close.ids) + [True] * len(answer)
        return (*kept, *close.ids, *answer), own, len(kept) - begin


def _calls(message: Message) -> list[Call]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [Call(name=function["name"], arguments=function.get("arguments") or {}) for function in functions]
