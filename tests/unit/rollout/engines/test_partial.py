"""Real vLLM: groups in flight continue in another engine, and the trainer agrees with every token."""

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models
from support.plain_rank import rank_logprobs

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.thinking_mode import UNLIMITED, Thinking, up_to
from temper.envs.source import open_source
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.codec import from_json
from temper.rollout.config import EpisodeLimits, RolloutConfig
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.protocol import TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.resume import PartialGroup, partial_lines
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.token_arrays import tokens_of
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Group, Resumption, Ticket, Trajectory, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine

TOLERANCE = 1e-4
"""Largest difference of a log-probability, in nats, in float32."""
BEFORE, AFTER = 3, 8
"""Versions of the first and the second engine, which have the same weights."""
SAMPLES = 8
ENGINE = EngineConfig(max_model_len=1000, max_sequences=64)
CONFIG = RolloutConfig(
    engine=ENGINE, limits=EpisodeLimits(turn_tokens=150, total_tokens=960), thinking=ThinkingConfig(grace=4)
)
MODES = (UNLIMITED, up_to(0), up_to(20), up_to(60))
LONG_S = 60.0


def ticket_of(number: int, env: str, thinking: Thinking) -> Ticket:
    task = open_source(bind(env, EnvConfig(max_turns=3 if env == "gym" else None)), split="train", seed=1).task(number)
    return Ticket(number=number, task=replace(task, thinking=thinking), admitted=WeightVersion(step=BEFORE))


async def worker_on(model_dir: Path, *, version: int) -> RolloutWorker:
    worker = RolloutWorker(CONFIG, seed=1, make_engine=make_engine, make_agent_server=make_agent_server)
    await worker.start(str(model_dir), version)
    return worker


async def partial_groups(
    worker: RolloutWorker, tickets: list[Ticket], *, answered: int
) -> tuple[list[PartialGroup], float]:
    """The partial groups after so many answered turns, and the seconds to report them. The run is then cancelled."""
    playing = [asyncio.create_task(worker.run_group(ticket, SAMPLES)) for ticket in tickets]
    async with asyncio.timeout(LONG_S):
        while True:
            began = time.monotonic()
            partial = await worker.groups_in_flight()
            took = time.monotonic() - began
            if sum(len(one.turns) for group in partial for one in group.unfinished.values()) >= answered:
                break
            await asyncio.sleep(0.02)
    for task in playing:
        task.cancel()
    await asyncio.wait(playing, timeout=LONG_S)
    return partial, took


def check_kept(trajectory: Trajectory, group: PartialGroup, sample: int) -> None:
    """The partial part is its beginning, token by token. The second engine sampled the rest."""
    if sample in group.finished:
        assert trajectory == group.finished[sample]
        return
    ids = [token for turn in trajectory.turns for token in turn.sampled_ids]
    versions = [version for turn in trajectory.turns for version in turn.versions_T]
    logprobs = [logprob for turn in trajectory.turns for logprob in turn.logprobs_T]
    partial = group.unfinished.get(sample)
    if partial is None:
        assert (trajectory.resumption, set(versions)) == (Resumption.NO, {AFTER})
        return
    last = partial.turn.completion if partial.turn else None
    kept = [token for turn in partial.turns for token in turn.sampled_ids] + list(last.token_ids if last else ())
    known = [value for turn in partial.turns for value in turn.logprobs_T] + list(last.logprobs_T if last else ())
    assert trajectory.resumption is Resumption.RESUMED
    assert ids[: len(kept)] == kept
    assert [math.isnan(value) for value in logprobs[: len(kept)]] == [math.isnan(value) for value in known]
    assert [v for v in logprobs[: len(kept)] if not math.isnan(v)] == [v for v in known if not math.isnan(v)]
    assert versions == [BEFORE] * len(kept) + [AFTER] * (len(ids) - len(kept))


def check_closings(tags: ThinkingTags, trajectory: Trajectory, budget: int) -> int:
    """Its thinking ends exactly at the rule's places. Return the number of forced ends."""
    forced = 0
    for turn in trajectory.turns:
        limit = ThinkingLimit(tokens=budget, grace=CONFIG.thinking.grace)
        place = tags.forced_end(tokens_of(turn.sampled_ids), limit)
        marked = [number for number, mark in enumerate(turn.injected_T) if mark]
        expected = [] if place is None else list(range(place.start, min(place.end, len(turn.sampled_ids))))
        assert marked == expected
        forced += bool(marked)
    return forced


def gap(rank: TrainerWorker, trajectories: list[Trajectory]) -> float:
    """Largest difference between the trainer and the recording, over all sampled tokens of both engines."""
    wholes, recorded = [], []
    for trajectory in trajectories:
        ids: list[int] = []
        known: list[float] = []
        for turn in trajectory.turns:
            ids += [*turn.context_ids, *turn.sampled_ids]
            known += [*[math.nan] * len(turn.context_ids), *turn.logprobs_T]
        wholes.append(tuple(ids))
        recorded.append(known)
    rows = rank_logprobs(rank, [TrainingSample.supervised(ids=ids, trained_T=[False] * len(ids)) for ids in wholes])
    return max(
        abs(ours - theirs)
        for known, row in zip(recorded, rows, strict=True)
        for ours, theirs in zip(known[len(known) - len(row) :], row, strict=True)
        if not math.isnan(ours)
    )


async def closings_go_on(engine: VllmEngine, tags: ThinkingTags, prompt: tuple[int, ...]) -> None:
    """A turn interrupted before, inside and after its closing continues with the rest of the closing."""
    limit = ThinkingLimit(tokens=6, grace=3)
    whole = await engine.generate(TurnRequest(prompt_ids=prompt, max_tokens=40, seed=5, limit=limit))
    place = tags.forced_end(whole.token_ids, limit)
    assert place is not None
    assert len(whole.token_ids) > place.end
    for cut in range(1, place.end + 3):
        partial = whole.first(cut)
        rest = await engine.generate(
            TurnRequest(prompt_ids=prompt, max_tokens=40 - cut, seed=cut, limit=limit, prefix_ids=partial.token_ids)
        )
        both = partial.join(rest)
        closed = tags.forced_end(both.token_ids, limit)
        assert closed is not None
        assert [n for n, mark in enumerate(both.injected_T) if mark] == list(range(closed.start, closed.end))
        assert both.token_ids[closed.start : closed.end] == closed.ids


async def story(model_dir: Path, say: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(model_dir)
    tags = ThinkingTags(tokenizer)
    tickets = [ticket_of(n, ("gym", "math")[n % 2], MODES[n // 2]) for n in range(8)]
    first = await worker_on(model_dir, version=BEFORE)
    engine = first._engine
    assert isinstance(engine, VllmEngine)
    prompt = Renderer(tokenizer).prompt_ids(tickets[0].task)
    try:
        await closings_go_on(engine, tags, prompt)
        partial, took = await partial_groups(first, tickets, answered=2)
    finally:
        await first.close()
    lines = partial_lines([], partial, unfinished={ticket.number for ticket in tickets})
    tokens = sum(one.tokens for group in partial for one in group.unfinished.values())
    with say.disabled():
        print(f"\ngroups in flight: {tokens} tokens in {took * 1000:.1f} ms, {len(lines)} bytes")
    saved = (from_json(PartialGroup, line) for line in lines.splitlines())  # whose groups have not ended yet
    left = [group.with_ticket(tickets[group.ticket.number]) for group in saved]
    assert any(
        one.turn is not None and one.turn.completion.token_ids for group in left for one in group.unfinished.values()
    )
    second = await worker_on(model_dir, version=AFTER)
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    try:
        rank.load(str(model_dir), optim=OptimConfig(), total_steps=1)
        groups: list[Group] = await asyncio.gather(
            *(second.run_group(group.ticket, SAMPLES, 0, group) for group in left)
        )
        forced = 0
        for group, there in zip(groups, left, strict=True):
            assert len(group.trajectories) == SAMPLES
            for sample, trajectory in enumerate(group.trajectories):
                check_kept(trajectory, there, sample)
                if (budget := group.ticket.task.thinking.budget) is not None and there.ticket.task.env.name == "math":
                    forced += check_closings(tags, trajectory, budget)
        assert forced
        largest = gap(rank, [t for group in groups for t in group.trajectories])
        with say.disabled():
            print(f"largest difference {largest:.2e}")
        assert largest < TOLERANCE
    finally:
        rank.close()
        await second.close()


@pytest.mark.faults
def test_groups_in_flight_go_on_in_another_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(story(tiny_models.qwen3(tmp_path / "model"), capsys))
