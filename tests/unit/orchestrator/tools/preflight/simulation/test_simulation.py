"""Simulated runs: the real loop, buffer and pool in virtual time, against independent results."""

import asyncio
import json
import random
import time
from dataclasses import replace
from statistics import fmean

import pytest

from temper.envs.core.clock import loop_time
from temper.orchestrator.__main__ import main
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.deadline import Deadline, StuckError, in_thread, within
from temper.orchestrator.tools.preflight.simulation.scenario import LogNormal, Scenario, Speeds, cut_mean, with_mean
from temper.orchestrator.tools.preflight.simulation.simulated_parts import CALL_S, TOKEN_S, EngineModel
from temper.orchestrator.tools.preflight.simulation.simulation import simulate
from temper.orchestrator.tools.preflight.simulation.virtual_time import NoEventsLeft, run_virtually

PASS_S, LEARN_S, PUBLISH_S, LOAD_S, START_S = 0.01, 0.4, 0.5, 0.25, 2.0
TOKENS = 100
GENERATE_S = TOKENS * PASS_S
DRIVER_S = 2 * TOKENS * TOKEN_S
"""Delay per group before a step begins to train."""
SPEEDS = Speeds(
    pass_s=(0.0, *(PASS_S,) * 4),
    learn_token_s=LEARN_S / (4 * TOKENS),
    learn_fixed_s=0.0,
    publish_s=PUBLISH_S,
    load_s=LOAD_S,
    transport="shared_memory",
    prompt_tokens=0.0,
    start_s=START_S,
)
SAME = LogNormal(mean=TOKENS, tail=0.0, longest=1000, seed=0)
TAILED = with_mean(replace(SAME, tail=1.0), TOKENS)


def scenario(
    *,
    max_lag: int,
    engines: int = 1,
    groups: int = 2,
    over_sampling: float | None = None,
    speeds: Speeds = SPEEDS,
    lengths: LogNormal = SAME,
    seed: int = 0,
) -> Scenario:
    """Groups of two answers. One engine has slots for a step of two groups."""
    loop = RlConfig(
        max_lag=max_lag,
        groups_per_step=groups,
        group_size=2,
        over_sampling=over_sampling,
        timeout_s=100,
        max_replaced_groups=0,
    )
    return Scenario(loop=loop, engines=engines, speeds=speeds, lengths=lengths, seed=seed)


def test_waits_threads_and_deadlines_go_by_virtual_time() -> None:
    async def hours() -> tuple[float, float]:
        await asyncio.sleep(3600)
        between = loop_time()
        assert await in_thread(lambda: "made") == "made"
        return between, loop_time()

    async def stuck() -> float:
        with pytest.raises(StuckError):
            await within(Deadline(seconds=500, setting="x"), asyncio.Event().wait(), stage="s", waiting_for="ever")
        return loop_time()

    began = time.monotonic()
    assert run_virtually(hours()) == pytest.approx((3600, 3600))
    assert time.monotonic() - began < 60
    assert run_virtually(stuck()) == pytest.approx(500)
    with pytest.raises(NoEventsLeft):
        run_virtually(asyncio.Event().wait())


def engine_ends(pass_s: tuple[float, ...], lengths: list[int]) -> list[float]:
    """Return when each answer ends if all begin at once."""

    async def run() -> list[float]:
        engine = EngineModel(pass_s)
        groups = [engine.add([length]) for length in lengths]
        return [(await group.done)[0] for group in groups]

    return run_virtually(run())


def by_passes(pass_s: tuple[float, ...], lengths: list[int]) -> list[float]:
    """The same, pass by pass: a pass gives one token to each sequence, and waiting sequences join between passes."""
    left, waiting, ends, now = dict[int, int](), list(range(len(lengths))), [0.0] * len(lengths), 0.0
    while left or waiting:
        while waiting and len(left) < len(pass_s) - 1:
            first = waiting.pop(0)
            left[first] = lengths[first]
        now += pass_s[len(left)]
        for number in list(left):
            left[number] -= 1
            if not left[number]:
                del left[number]
                ends[number] = now
    return ends


def test_an_engine_ends_answers_as_by_hand_and_as_a_simulation_pass_by_pass() -> None:
    # 10 tokens next to another sequence take 15 s. The third replaces the first; both continue at 1.5 s a token.
    # The second ends its last 10 at 30 s. The third then has 10 of 12 and continues alone at 1 s a token.
    assert engine_ends((0.0, 1.0, 1.5), [10, 20, 12]) == pytest.approx([15, 30, 32])
    draw = random.Random(3)
    pass_s = (0.0, *(0.02 + 0.003 * n for n in range(1, 9)))
    lengths = [draw.randint(1, 300) for _ in range(60)]
    assert engine_ends(pass_s, lengths) == pytest.approx(by_passes(pass_s, lengths))


def test_a_synchronous_step_is_generating_and_learning_and_pushing_one_after_the_other() -> None:
    found = simulate(scenario(max_lag=0))
    step_s = GENERATE_S + 2 * DRIVER_S + LEARN_S + PUBLISH_S + CALL_S + LOAD_S
    assert found.start_s == pytest.approx(START_S)
    assert found.step_s == pytest.approx(step_s)
    assert found.samples_per_s == pytest.approx(4 / step_s)
    assert found.tokens_per_s == pytest.approx(4 * TOKENS / step_s)
    assert found.engines_idle == pytest.approx(1 - GENERATE_S / step_s)
    assert found.places_used == pytest.approx(GENERATE_S / step_s)
    assert found.learner_idle == pytest.approx(1 - (LEARN_S + PUBLISH_S) / step_s)
    assert found.driver_busy == pytest.approx((4 * TOKENS * TOKEN_S + CALL_S) / step_s)
    assert (found.lag_mean, found.lag_max, found.ended) == (0, 0, "")


def test_a_step_at_lag_1_is_the_longer_of_its_two_sides() -> None:
    found = simulate(scenario(max_lag=1))
    assert found.step_s == pytest.approx(GENERATE_S + LOAD_S, rel=0.001)
    assert (found.lag_mean, found.lag_max) == (1, 1)
    slow = simulate(scenario(max_lag=1, speeds=replace(SPEEDS, learn_fixed_s=2.0)))
    assert slow.step_s == pytest.approx(2.0 + LEARN_S + PUBLISH_S)
    assert slow.learner_idle == pytest.approx(0)


def test_more_engines_than_a_step_has_answers_gain_nothing() -> None:
    steps = {engines: simulate(scenario(max_lag=0, engines=engines)).step_s for engines in (1, 2, 4)}
    assert steps[1] == pytest.approx(steps[2], rel=0.01) == pytest.approx(steps[4], rel=0.01)


def test_a_fleet_samples_no_more_than_one_driver_takes() -> None:
    """16 engines with 4 slots sample 200,000 tokens a second each, more than twice the driver's rate."""
    fast = replace(SPEEDS, pass_s=(0.0, *(2e-5,) * 4), learn_token_s=0.0, publish_s=0.0, load_s=0.0)
    found = simulate(scenario(max_lag=1, engines=16, groups=64, speeds=fast))
    assert found.driver_busy > 0.9
    assert found.step_s == pytest.approx(64 * DRIVER_S + 16 * CALL_S, rel=0.1)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("over_sampling", [None, 0.5])
def test_no_group_is_ever_older_than_max_lag(max_lag: int, over_sampling: float | None) -> None:
    beyond = over_sampling if max_lag else None
    wanted = scenario(max_lag=max_lag, engines=3, groups=8, over_sampling=beyond, lengths=TAILED, seed=max_lag)
    found = simulate(wanted)
    assert found.ended == ""
    assert found.lag_max <= max_lag
    assert found.lag_mean <= (max_lag if beyond is None else max(beyond, 1 / 8))
    assert (found.lag_max > 0) == (max_lag > 0)


def test_a_seed_decides_everything() -> None:
    wanted = scenario(max_lag=2, engines=3, groups=8, lengths=TAILED, over_sampling=0.5)
    assert simulate(wanted) == simulate(wanted)
    assert simulate(wanted) != simulate(replace(wanted, seed=5, lengths=replace(TAILED, seed=5)))


def test_a_deadline_that_is_too_short_ends_a_simulated_run() -> None:
    wanted = scenario(max_lag=0)
    found = simulate(replace(wanted, loop=replace(wanted.loop, timeout_s=0.5)))
    assert "rl step 1" in found.ended
    assert found.steps == 0


def test_lengths_have_the_mean_that_was_asked_for_and_none_is_above_the_longest() -> None:
    for tail in (0.0, 0.5, 1.2):
        lengths = with_mean(LogNormal(mean=300.0, tail=tail, longest=1000.0, seed=1), 300.0)
        drawn = [tokens for ticket in range(4000) for tokens in lengths.of(ticket, 4)]
        assert fmean(drawn) == pytest.approx(300, rel=0.03)
        assert max(drawn) <= 1000
        assert cut_mean(lengths) == pytest.approx(300, rel=1e-6)
        assert lengths.of(7, 4) == lengths.of(7, 4)
    with pytest.raises(ValueError, match="1,000"):
        with_mean(LogNormal(mean=300.0, tail=1.0, longest=1000.0, seed=1), 1000.0)


GPUS = ("configs/scaling.yaml", "--gpus", "8xH100-80G")


def test_the_command_prints_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["doctor", "--simulate", *GPUS, "--engines", "2,4", "--max-lag", "0,1", "--steps", "3", "--grow", "--json"]
    assert main([*given, "rl.groups_per_step=8", "rl.group_size=4"]) == 0
    cases = {(case["engines"], case["max_lag"]): case for case in json.loads(capsys.readouterr().out)["cases"]}
    assert list(cases) == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert cases[4, 0]["samples_per_s"] > cases[2, 0]["samples_per_s"]
    assert cases[2, 1]["samples_per_s"] > cases[2, 0]["samples_per_s"]
    assert cases[4, 0]["start_s"] > cases[2, 0]["start_s"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("configs/scaling.yaml",), "--gpus"),
        ((*GPUS, "--engines", "0"), "--engines 0"),
        ((*GPUS, "--tail", "9"), "--tail 9"),
        ((*GPUS, "placement=colocated", "rl.max_lag=0"), "placement=dedicated"),
    ],
)
def test_what_makes_no_sense_is_refused(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--simulate", *given]) == 2
    assert said in capsys.readouterr().err
