"""An engine that returns scripted texts, each after a set time, and an episode on it."""

import asyncio
from collections.abc import Sequence

from support.replay_engine import ReplayEngine

from temper.envs.catalog import make_env
from temper.envs.core.task import Task
from temper.envs.env_episode import MakeEnv
from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.runner import EpisodeRunner
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.trajectory import Trajectory

TOKENIZER = byte_tokenizer()
RENDERER = Renderer(TOKENIZER)
TAGS = ThinkingTags(TOKENIZER)
ROOM = EpisodeLimits(turn_tokens=400, total_tokens=100_000)
"""Limits that no short episode reaches."""


def completion(text: str, *, max_tokens: int = 10_000) -> Completion:
    """A turn as the engine would end it: by itself, or by the limit on its tokens."""
    ids = (*TOKENIZER(text, add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id)
    kept = ids[:max_tokens]
    return Completion(
        token_ids=kept, logprobs_T=(-0.5,) * len(kept), versions_T=(0,) * len(kept), finished=len(kept) == len(ids)
    )


class ScriptedEngine(ReplayEngine):
    """Writes the texts in order, then repeats the last one. A turn takes `seconds`."""

    def __init__(self, texts: Sequence[str], *, seconds: float = 0.0) -> None:
        super().__init__({})
        self._texts = list(texts)
        self._seconds = seconds
        self.busy = self.busiest = 0

    async def generate(self, request: TurnRequest) -> Completion:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(self._seconds)
        self.busy -= 1
        return completion(self._texts.pop(0) if len(self._texts) > 1 else self._texts[0], max_tokens=request.max_tokens)


def runner_of(
    engine: ReplayEngine, *, limits: EpisodeLimits = ROOM, sequences: int = 256, make: MakeEnv = make_env
) -> EpisodeRunner:
    """Episodes of that engine."""
    sampler = TurnSampler(engine, TAGS, ThinkingConfig(), turn_tokens=limits.turn_tokens)
    return EpisodeRunner(sampler=sampler, renderer=RENDERER, limits=limits, sequences=sequences, make_env=make)


def play(task: Task, texts: Sequence[str], *, limits: EpisodeLimits = ROOM, make: MakeEnv = make_env) -> Trajectory:
    """The episode in which the model writes these texts."""
    return asyncio.run(runner_of(ScriptedEngine(texts), limits=limits, make=make).run(task, seed=1))
