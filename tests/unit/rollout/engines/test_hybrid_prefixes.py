"""Real vLLM: a hybrid whose prompts are cached samples the same tokens as one that computes each prompt."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models

from temper.learner.models.fresh import byte_tokenizer, make_model
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.hybrid_prefixes import SHORTEST
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.rollout_arguments import HYBRID_MATCH
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import WeightVersion

ENDS = (byte_tokenizer().eos_token_id,)
TOLERANCE = 1e-5
"""Largest difference of a log-probability, in nats, in float32."""
CONFIG = EngineConfig(max_model_len=1024, max_sequences=32)
BLOCKS = 40
"""Cache blocks of the engine under test: too few for 32 long answers, so that some are computed again."""
GROUP = 4
LIMITS = (None, ThinkingLimit(tokens=5, grace=0), ThinkingLimit(tokens=17, grace=6))


def prompt_of(length: int, *, start: int = 0) -> tuple[int, ...]:
    draw = random.Random(f"{length} {start}")  # no prompt begins like another one
    return tuple(draw.randrange(20, 220) for _ in range(length))


def shared(length: int) -> int:
    """Tokens of a prompt that its group computes once."""
    return (length - 1) // HYBRID_MATCH * HYBRID_MATCH if length >= SHORTEST else 0


@asynccontextmanager
async def engine_of(model: Path, config: EngineConfig) -> AsyncIterator[VllmEngine]:
    tags = ThinkingTags(load_tokenizer(model))
    engine = VllmEngine(model, config, version=WeightVersion(step=0), ends=ENDS, tags=tags)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def answers(engine: VllmEngine, requests: Iterable[TurnRequest]) -> list[Completion]:
    return list(await asyncio.gather(*map(engine.generate, requests)))


def largest_gap(ours: list[Completion], theirs: list[Completion]) -> float:
    """Return the largest difference of a log-probability. The tokens are the same."""
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token_ids, one.injected_T, one.finished) == (other.token_ids, other.injected_T, other.finished)
        for mine, reference in zip(one.logprobs_T, other.logprobs_T, strict=True):
            assert math.isnan(mine) == math.isnan(reference)
            largest = max(largest, 0.0 if math.isnan(mine) else abs(mine - reference))
    return largest


async def groups_agree(cached: VllmEngine, plain: VllmEngine) -> None:
    """Groups with prompts around the ends of units and blocks, with and without thinking limits."""
    block = cached.llm.vllm_config.cache_config.block_size
    lengths = [1, SHORTEST - 1, SHORTEST, SHORTEST + 1, SHORTEST + HYBRID_MATCH, 7 * HYBRID_MATCH - 1]
    lengths += [block * blocks + more for blocks in (1, 2) for more in (-1, 0, 1, HYBRID_MATCH + 1)]
    for length in sorted(set(lengths)):
        requests = [
            TurnRequest(prompt_ids=prompt_of(length), max_tokens=24, seed=seed, limit=LIMITS[seed % len(LIMITS)])
            for seed in range(GROUP)
        ]
        cached.take_stats()
        assert largest_gap(await answers(cached, requests), await answers(plain, requests)) < TOLERANCE, length
        assert cached.take_stats().cached_tokens == (GROUP - 1) * shared(length), length


async def several_groups_begin_together(cached: VllmEngine, plain: VllmEngine) -> None:
    """No group waits for the prompt of another one: all need two passes more than their tokens."""
    requests = [
        TurnRequest(prompt_ids=prompt_of(150, start=9 + group), max_tokens=24, seed=seed)
        for group in range(4)
        for seed in range(GROUP)
    ]
    await cached.llm.pause_generation(mode="keep", clear_cache=False)
    cached.take_stats()
    running = asyncio.create_task(answers(cached, requests))
    while cached.llm.output_processor.get_num_unfinished_requests() < len(requests):
        await asyncio.sleep(0.01)
    await cached.llm.resume_generation()
    assert largest_gap(await running, await answers(plain, requests)) < TOLERANCE
    stats = cached.take_stats()
    assert stats.cached_tokens == 4 * (GROUP - 1) * shared(150)
    assert stats.passes < 2 * 24  # one group after the other would take four times 24


async def turns_agree(cached: VllmEngine, plain: VllmEngine) -> None:
    """Later turns of an episode find at least the first prompt in the cache."""
    block = cached.llm.vllm_config.cache_config.block_size
    ids = prompt_of(block + 20, start=3)
    for turn in range(3):
        request = TurnRequest(prompt_ids=ids, max_tokens=block // 2 + 7, seed=turn)
        cached.take_stats()
        (ours,), (theirs,) = await answers(cached, [request]), await answers(plain, [request])
        assert largest_gap([ours], [theirs]) < TOLERANCE
        assert (cached.take_stats().cached_tokens > 0) is (turn > 0)
        ids = (*ids, *ours.token_ids, *prompt_of(33, start=turn))


async def a_full_cache_changes_no_token(cached: VllmEngine, plain: VllmEngine) -> None:
    """Long answers that vLLM stops and computes again."""
    requests = [
        TurnRequest(prompt_ids=prompt_of(200, start=50 + seed // 8), max_tokens=500, seed=seed) for seed in range(32)
    ]
    ours, theirs = await answers(cached, requests), await answers(plain, requests)
    assert largest_gap(ours, theirs) < TOLERANCE


async def an_aborted_request_leaves_its_group(cached: VllmEngine, plain: VllmEngine) -> None:
    """The first request of a group ends at any time: before, in or after the pass with its prompt."""
    for number, wait_s in enumerate((0.0, 0.001, 0.005, 0.02)):
        requests = [
            TurnRequest(prompt_ids=prompt_of(400, start=80 + number), max_tokens=24, seed=seed) for seed in range(GROUP)
        ]
        running = [asyncio.create_task(cached.generate(each)) for each in requests]
        await asyncio.sleep(wait_s)
        running[0].cancel()
        ours = list(await asyncio.gather(*running[1:]))
        assert largest_gap(ours, await answers(plain, requests[1:])) < TOLERANCE


async def a_push_ends_the_cache(cached: VllmEngine, plain: VllmEngine, other: Path) -> None:
    requests = [TurnRequest(prompt_ids=prompt_of(200, start=1), max_tokens=24, seed=seed) for seed in range(GROUP)]
    before = await answers(cached, requests)
    for engine in (cached, plain):
        await engine.load_checkpoint(other, WeightVersion(step=1))
    cached.take_stats()
    ours = await answers(cached, requests)
    assert cached.take_stats().cached_tokens == (GROUP - 1) * shared(200)
    assert largest_gap(ours, await answers(plain, requests)) < TOLERANCE
    assert [one.logprobs_T for one in ours] != [one.logprobs_T for one in before]
    assert all(set(one.versions_T) == {1} for one in ours)


@pytest.mark.timeout(900)
def test_cached_prompts_of_hybrids_change_no_token(tmp_path: Path) -> None:
    async def check() -> None:
        model, other = tiny_models.nemotron_h(tmp_path / "model"), tmp_path / "other"
        make_model(other, tiny_models.SMALL, seed=1)
        tight = replace(CONFIG, extra={"num_gpu_blocks_override": BLOCKS})
        async with engine_of(model, tight) as cached, engine_of(model, replace(CONFIG, prefix_caching="off")) as plain:
            await groups_agree(cached, plain)
            await several_groups_begin_together(cached, plain)
            await turns_agree(cached, plain)
            await a_full_cache_changes_no_token(cached, plain)
            await an_aborted_request_leaves_its_group(cached, plain)
            await a_push_ends_the_cache(cached, plain, other)

    asyncio.run(check())
