"""Cached prefixes against prompts computed in full: groups of answers, and dialogues that grow, on two bare engines.

`python -m temper.orchestrator.tools.bench.prefixes` measures a fresh Qwen 3 of 4 M parameters. The engines take turns,
and the best of
each counts.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from temper.learner.models.fresh import fresh_qwen3
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.protocol import Engine, TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion

REPEATS = 3
VOCABULARY = 288
GROUPS, ANSWERS, ANSWER_TOKENS = 4, 16, 64
PROMPT_TOKENS = 550
DIALOGUES, TURNS, TURN_TOKENS, OBSERVED_TOKENS = 4, 10, 32, 64
FIRST_TOKENS = 600
"""Tokens of the first prompt of a dialogue, a turn of which is about a call of a tool."""

Work = Callable[[Engine, int], Awaitable[None]]


async def bench_prefixes() -> dict[str, float]:
    """Return how many times faster the same requests are with cached prefixes than without."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        fresh_qwen3(model, width=256, layers=4)
        engines = [await _engine(model, cached=cached) for cached in (True, False)]
        try:
            return {
                "prefixes/groups_times_uncached": await _times(_groups, engines),
                "prefixes/dialogues_times_uncached": await _times(_dialogues, engines),
            }
        finally:
            for engine in engines:
                await engine.close()


async def _times(work: Work, engines: list[Engine]) -> float:
    best = [float("inf")] * len(engines)
    for repeat in range(REPEATS):
        for place, engine in enumerate(engines):
            began = time.perf_counter()
            await work(engine, repeat)
            best[place] = min(best[place], time.perf_counter() - began)
    return best[1] / best[0]


async def _groups(engine: Engine, repeat: int) -> None:
    """Sample groups of answers to prompts that were not seen before."""
    draw = random.Random(repeat)
    prompts = [_ids(draw, PROMPT_TOKENS) for _ in range(GROUPS)]
    requests = (
        TurnRequest(prompt_ids=prompt, max_tokens=ANSWER_TOKENS, seed=seed)
        for prompt in prompts
        for seed in range(ANSWERS)
    )
    await asyncio.gather(*(engine.generate(request) for request in requests))


async def _dialogues(engine: Engine, repeat: int) -> None:
    """Play dialogues whose every prompt is the one before, what was sampled, and what a tool said."""
    draw = random.Random(repeat)
    await asyncio.gather(*(_dialogue(engine, random.Random(draw.random())) for _ in range(DIALOGUES)))


async def _dialogue(engine: Engine, draw: random.Random) -> None:
    ids = _ids(draw, FIRST_TOKENS)
    for turn in range(TURNS):
        said = await engine.generate(TurnRequest(prompt_ids=ids, max_tokens=TURN_TOKENS, seed=turn))
        ids = (*ids, *said.token_ids, *_ids(draw, OBSERVED_TOKENS))


def _ids(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randrange(VOCABULARY - 32) for _ in range(count))


async def _engine(model: Path, *, cached: bool) -> Engine:
    config = EngineConfig(max_model_len=4096, prefix_caching="on" if cached else "off")
    engine = VllmEngine(model, config, version=WeightVersion(step=0), ends=())
    await engine.start()
    return engine


if __name__ == "__main__":
    print(json.dumps(asyncio.run(bench_prefixes())))
