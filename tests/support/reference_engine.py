"""An engine that returns the reference turns of a task in a model family's format, and episodes on it."""

import asyncio
from collections.abc import Sequence

from support.replay_engine import ReplayEngine
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Task
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.runner import EpisodeRunner
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.formats.messages import one_call_a_turn
from temper.rollout.trajectory import Trajectory

ROOM = EpisodeLimits(turn_tokens=4_000, total_tokens=400_000, timeout_s=600)
"""Limits that no reference episode reaches: a token is a byte."""


class Family:
    """Plays the episodes of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.renderer = Renderer(tokenizer)
        self.tags = ThinkingTags.find(tokenizer)

    def play(self, task: Task, messages: Sequence[Message]) -> Trajectory:
        """The episode with the assistant's messages, one call a turn if the format has no parallel calls."""
        said = list(messages) if self.renderer.format.parallel else one_call_a_turn(messages)
        engine = ReferenceEngine(self, task, [message for message in said if message["role"] == "assistant"])
        sampler = TurnSampler(engine, self.tags, ThinkingConfig(), turn_tokens=ROOM.turn_tokens)
        runner = EpisodeRunner(sampler=sampler, renderer=self.renderer, limits=ROOM)
        return asyncio.run(runner.run(task, seed=1))


class ReferenceEngine(ReplayEngine):
    """Writes the messages in order in the form of the chat template. A limit ends the thinking of each."""

    def __init__(self, family: Family, task: Task, messages: Sequence[Message]) -> None:
        super().__init__({})
        self._family, self._task, self._messages = family, task, list(messages)

    async def generate(self, request: TurnRequest) -> Completion:
        """The next message. `IndexError` after the last one."""
        renderer, tags = self._family.renderer, self._family.tags
        text = renderer.answer_text(self._messages.pop(0), thinks=self._task.thinks, context_ids=request.prompt_ids)
        ids = renderer.encode(text)
        close = None
        if request.limit is not None and tags is not None:
            close = tags.forced_end(ids, request.limit, opened=tags.is_opened_by(request.prompt_ids))
        if close is not None:
            assert tags is not None
            ids = (*ids[: close.start], *close.ids, *ids[tags.answer_start(ids) :])
        injected_T = tuple(close is not None and close.start <= place < close.end for place in range(len(ids)))
        kept = ids[: request.max_tokens]
        return Completion(
            token_ids=kept,
            logprobs_T=tuple(float("nan") if one else -0.5 for one in injected_T[: len(kept)]),
            versions_T=(0,) * len(kept),
            injected_T=injected_T[: len(kept)],
            finished=len(kept) == len(ids),
        )
