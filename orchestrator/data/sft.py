"""Supervised data: dialogues as training samples in every mode of thinking.

Batch `step` depends only on the seed and the step, so a resumed run sees the same data.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from temper.envs.core.task import Message
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Mode, ThinkingMix, up_to
from temper.envs.data.config import OnError
from temper.learner.batches.samples import TrainingSample
from temper.orchestrator.config.supervised import SftDataConfig
from temper.orchestrator.data.chat_data import Dialogue, DialogueTokenizer, has_reasoning, without_reasoning
from temper.orchestrator.data.row_intake import fits, positions


class SftData:
    """Batches of training samples, each in a mode of thinking drawn from `config.thinking`.

    A sample is never truncated. One over `max_tokens` in its mode keeps its original form. If that is too long too, it raises
    `ValueError` or, with `on_error` "skip", is missing from its batch.
    """

    def __init__(
        self,
        dialogue: Callable[[int], Dialogue],
        tokenizer: DialogueTokenizer,
        config: SftDataConfig,
        *,
        name: str = "sft",
        batch_size: int,
        max_tokens: int | None,
        setting: str = "sft.max_tokens",
        on_error: OnError,
        seed: int,
    ) -> None:
        """In messages, `name` is the instance of the stage and `setting` the limit `max_tokens` (None for none)."""
        self._name = name
        self._setting = setting
        self._dialogue = dialogue
        self._tokenizer = tokenizer
        self._config = config
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._on_error = on_error
        self._seed = seed

    def batch(self, step: int) -> list[TrainingSample]:
        """Return the samples of a step (1 or more)."""
        drawn = [self._sample(index) for index in positions(step, self._batch_size)]
        return [sample for sample in drawn if sample is not None]

    def _sample(self, index: int) -> TrainingSample | None:
        rng = random.Random(f"{self._seed}/sft/{index}")
        dialogue = self._dialogue(index)
        count = 0
        for each in (under_mode(dialogue, self._config, self._tokenizer, rng), dialogue):
            sample = self._tokenizer.sample(each)
            count = len(sample.ids)
            if fits(sample.ids, self._max_tokens):
                return sample
        if self._on_error == "skip":
            return None
        raising = "raise it, or " if self._setting.startswith(f"{self._name}.") else ""
        raise ValueError(
            f"the demonstration {dialogue.task.label} has {count} tokens, more than "
            f"{self._setting}={self._max_tokens}; {raising}skip such ones with {self._name}.on_error=skip"
        )


def under_mode(dialogue: Dialogue, config: SftDataConfig, tokenizer: DialogueTokenizer, rng: random.Random) -> Dialogue:
    """Return the dialogue in a drawn mode. Without reasoning, or with a mode of its task, it is unchanged."""
    thoughts = [number for number, message in enumerate(dialogue.reply) if has_reasoning(message)]
    mix = config.thinking or ThinkingMix()
    mode = mix.draw_mode(rng)
    if dialogue.task.thinking != UNLIMITED or not thoughts or mode is Mode.UNLIMITED:
        return dialogue
    if mode is Mode.OFF:
        off = replace(dialogue.task, thinking=OFF)
        return replace(dialogue, task=off, reply=without_reasoning(dialogue.reply))
    if mode is Mode.LOW_EFFORT:
        reply = tuple(shorten(message, keep=config.low_effort_keep) for message in dialogue.reply)
        return replace(dialogue, task=replace(dialogue.task, thinking=LOW_EFFORT), reply=reply)
    place = rng.choice(thoughts)
    if config.cut_to_answer:
        return replace(dialogue, reply=stopped_short(dialogue.reply, place, rng))
    budget = (
        mix.draw_budget(rng) if mix.names_budgets else rng.randrange(tokenizer.thinking_tokens(dialogue.reply[place]))
    )
    return replace(dialogue, task=replace(dialogue.task, thinking=up_to(budget)))


def stopped_short(reply: tuple[Message, ...], place: int, rng: random.Random) -> tuple[Message, ...]:
    """Return a reply that ends within one of its reasonings, followed by the last answer."""
    reasoning = reply[place]["reasoning_content"]
    last = next(message for message in reversed(reply) if message["role"] == "assistant")
    return (*reply[:place], {**last, "reasoning_content": reasoning[: rng.randint(1, len(reasoning))]})


def shorten(message: Message, *, keep: float) -> Message:
    """Return a message with only the first words of its reasoning, at least one."""
    if not has_reasoning(message):
        return message
    words = message["reasoning_content"].split(" ")
    return {**message, "reasoning_content": " ".join(words[: max(1, round(keep * len(words)))])}
