"""Simulated runs: the product's own loop, buffer and pool in virtual time, beside results that were worked out otherwise."""

import asyncio
import inspect
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from temper.envs.core.clock import loop_time
from temper.orchestrator.__main__ import main
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.supervision import SupervisionConfig
from temper.orchestrator.loop.buffer import Buffer
from temper.orchestrator.loop.deadline import Deadline, StuckError, in_thread, within
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.pipeline.config import load_config, save_config
from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.simulation.answer import table_text
from temper.orchestrator.tools.preflight.simulation.engine import EngineModel
from temper.orchestrator.tools.preflight.simulation.lengths import Lengths, LogNormal, Recorded, cut_mean, with_mean
from temper.orchestrator.tools.preflight.simulation.measured import engine_pass, recorded_groups
from temper.orchestrator.tools.preflight.simulation.meter import FleetMeter
from temper.orchestrator.tools.preflight.simulation.outcome import Outcome
from temper.orchestrator.tools.preflight.simulation.scaling import PAGE, STUDIES, run
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario
from temper.orchestrator.tools.preflight.simulation.simulation import Parts, simulate
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.orchestrator.tools.preflight.simulation.study import ground_of
from temper.orchestrator.tools.preflight.simulation.virtual_time import NothingLeft, run_virtually
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.weights.delivery import Delivery

PASS_S, LEARN_S, PUBLISH_S, LOAD_S, START_S = 0.01, 0.4, 0.5, 0.25, 2.0
TOKENS = 100
GENERATE_S = TOKENS * PASS_S
SPEEDS = Speeds(
    pass_s=(0.0, *(PASS_S,) * 4),
    learn_token_s=LEARN_S / (4 * TOKENS),
    learn_fixed_s=0.0,
    publish_s=PUBLISH_S,
    load_s=LOAD_S,
    transport="shared_memory",
    prompt_tokens=0.0,
    source="test",
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
    lengths: Lengths = SAME,
    deaths: float = 0.0,
    restarts: int = 1000,
    seed: int = 0,
) -> Scenario:
    """Groups of two answers; one engine has places for those of a step of two."""
    loop = RlConfig(
        max_lag=max_lag, groups_per_step=groups, group_size=2, over_sampling=over_sampling, timeout_s=100, max_drops=0
    )
    return Scenario(
        loop=loop,
        engines=engines,
        speeds=speeds,
        lengths=lengths,
        supervision=SupervisionConfig(restarts=restarts),
        deaths=deaths,
        seed=seed,
    )


def unreal(found: Outcome) -> Outcome:
    """What was simulated, without the seconds that it really took."""
    return replace(found, cpu_step_s=0.0)


# virtual time


def test_hours_of_virtual_time_take_no_time_and_threads_run_at_once() -> None:
    async def wait() -> tuple[float, float]:
        await asyncio.sleep(3600)
        between = loop_time()
        assert await in_thread(lambda: "made") == "made"
        return between, loop_time()

    began = time.monotonic()
    assert list(run_virtually(wait())) == pytest.approx([3600, 3600])
    assert time.monotonic() - began < 60


def test_deadlines_go_by_virtual_time() -> None:
    async def stuck() -> float:
        with pytest.raises(StuckError, match="nothing for 500 s while waiting for ever"):
            await within(Deadline(seconds=500, setting="x"), asyncio.Event().wait(), stage="s", waiting_for="ever")
        return loop_time()

    assert run_virtually(stuck()) == pytest.approx(500)


def test_a_wait_that_nothing_would_ever_end_is_told() -> None:
    with pytest.raises(NothingLeft, match="every task waits for another one"):
        run_virtually(asyncio.Event().wait())


# an engine


def engine_ends(pass_s: tuple[float, ...], lengths: list[int], begins: list[float]) -> list[float]:
    """When each answer ends that begins by itself at these seconds."""

    async def run() -> list[float]:
        meter = FleetMeter(engines=1, most=len(pass_s) - 1, in_flight=len(lengths), clock=loop_time)
        engine = EngineModel(pass_s, meter)

        async def one(length: int, at: float) -> float:
            await asyncio.sleep(at)
            return (await engine.add([length]).done)[0]

        return list(await asyncio.gather(*(one(*answer) for answer in zip(lengths, begins, strict=True))))

    return run_virtually(run())


def test_two_answers_share_an_engine_and_a_third_waits_for_its_place() -> None:
    # 10 tokens beside another one take 15 s; the first leaves, the third has its place, and both go on at 1.5 s a token:
    # 10 more of the second until 30 s, when the third has 10 of 12 and goes on alone at 1 s a token.
    assert engine_ends((0.0, 1.0, 1.5), [10, 20, 12], [0.0, 0.0, 0.0]) == pytest.approx([15, 30, 32])


def by_passes(pass_s: tuple[float, ...], lengths: list[int]) -> list[float]:
    """The same pass by pass: each gives one token to each sequence, and those that wait come in between passes."""
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


def test_an_engine_tells_what_a_simulation_pass_by_pass_tells() -> None:
    draw = random.Random(3)
    pass_s = (0.0, *(0.02 + 0.003 * n for n in range(1, 9)))
    lengths = [draw.randint(1, 300) for _ in range(60)]
    assert engine_ends(pass_s, lengths, [0.0] * 60) == pytest.approx(by_passes(pass_s, lengths))


# runs that can be worked out by hand


def test_a_synchronous_step_is_generating_and_learning_and_pushing_one_after_the_other() -> None:
    found = simulate(scenario(max_lag=0))
    step_s = GENERATE_S + LEARN_S + PUBLISH_S + LOAD_S
    assert found.step_s == pytest.approx(step_s)
    assert found.samples_per_s == pytest.approx(4 / step_s)
    assert found.tokens_per_s == pytest.approx(4 * TOKENS / step_s)
    assert found.engines_idle == pytest.approx(1 - GENERATE_S / step_s)
    assert found.places_used == pytest.approx(GENERATE_S / step_s)
    assert found.learner_idle == pytest.approx(1 - (LEARN_S + PUBLISH_S) / step_s)
    assert (found.lag_mean, found.lag_max, found.deaths, found.ended) == (0, 0, 0, "")
    assert sum(found.causes.values()) == pytest.approx(1)


def test_a_step_at_lag_1_is_the_longer_of_its_two_sides() -> None:
    found = simulate(scenario(max_lag=1))
    assert found.step_s == pytest.approx(GENERATE_S + LOAD_S)
    assert found.limited_by == "generating"
    assert (found.lag_mean, found.lag_max) == (1, 1)
    slow = simulate(scenario(max_lag=1, speeds=replace(SPEEDS, learn_fixed_s=2.0)))
    assert slow.step_s == pytest.approx(2.0 + LEARN_S + PUBLISH_S)
    assert slow.limited_by == "learning"
    assert slow.learner_idle == pytest.approx(0)


def test_more_engines_than_a_step_has_answers_gain_nothing() -> None:
    steps = {engines: simulate(scenario(max_lag=0, engines=engines)).step_s for engines in (1, 2, 4)}
    assert steps[1] == pytest.approx(steps[2]) == pytest.approx(steps[4])


# what runs


def parts_of(wanted: Scenario, meanwhile: Callable[[Parts], None] = lambda parts: None) -> tuple[Parts, Outcome]:
    seen: list[Parts] = []

    def keep(parts: Parts) -> None:
        seen.append(parts)
        meanwhile(parts)

    found = simulate(wanted, on_parts=keep)
    return seen[0], found


def test_loop_buffer_mixture_and_pool_are_those_of_the_product() -> None:
    parts, _ = parts_of(scenario(max_lag=1))
    assert type(parts.loop) is Loop
    assert type(parts.loop.buffer) is Buffer
    assert type(parts.loop.mixture) is Mixture
    assert type(parts.pool) is RolloutPool
    assert parts.loop.rollouts is parts.pool
    assert type(parts.loop.learner.__dict__["_delivery"]) is Delivery
    for product in (Loop, Buffer, Mixture, RolloutPool):
        assert "simulation" not in inspect.getfile(product)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("over_sampling", [None, 0.5])
def test_no_group_is_ever_older_than_max_lag(max_lag: int, over_sampling: float | None) -> None:
    beyond = over_sampling if max_lag else None
    found = simulate(
        scenario(max_lag=max_lag, engines=3, groups=8, over_sampling=beyond, lengths=TAILED, deaths=200.0, seed=max_lag)
    )
    assert found.ended == ""
    assert found.deaths > 0
    assert found.lag_max <= max_lag
    assert found.lag_mean <= (max_lag if beyond is None else max(beyond, 1 / 8))
    assert (found.lag_max > 0) == (max_lag > 0)


def test_a_seed_decides_everything() -> None:
    wanted = scenario(max_lag=2, engines=3, groups=8, lengths=TAILED, deaths=200.0, over_sampling=0.5)
    first, again = simulate(wanted), simulate(wanted)
    other = simulate(replace(wanted, seed=5, lengths=replace(TAILED, seed=5)))
    assert unreal(first) == unreal(again)
    assert unreal(first) != unreal(other)


# failures


def test_a_death_costs_what_was_begun_and_a_start_and_the_pool_heals_it() -> None:
    ends: list[float] = []
    died_after = 0.4

    def kill_later(parts: Parts) -> None:
        asyncio.get_running_loop().call_later(died_after, parts.pool.members()[0].member.kill)

    wanted = scenario(max_lag=0)
    seen: list[Parts] = []

    def on_parts(parts: Parts) -> None:
        seen.append(parts)
        kill_later(parts)

    found = simulate(wanted, on_parts=on_parts, on_step=lambda step: ends.append(loop_time()))
    step_s = GENERATE_S + LEARN_S + PUBLISH_S + LOAD_S
    assert ends[0] == pytest.approx(died_after + START_S + step_s)
    assert ends[1] - ends[0] == pytest.approx(step_s)
    assert (found.deaths, found.reissued) == (1, 2)
    (member,) = seen[0].pool.members()
    assert member.restarts == 1


def test_too_many_deaths_end_a_simulated_run_as_they_end_a_real_one() -> None:
    slow = replace(SPEEDS, learn_fixed_s=60.0)  # deaths within 10 s count as one
    found = simulate(scenario(max_lag=1, engines=8, groups=8, speeds=slow, deaths=200.0, restarts=3))
    assert found.ended.startswith("TooManyRestarts: 4 deaths within")
    assert "supervision.restarts=3" in found.ended


def test_a_deadline_that_is_too_short_ends_a_simulated_run() -> None:
    wanted = scenario(max_lag=0)
    found = simulate(replace(wanted, loop=replace(wanted.loop, timeout_s=0.5)))
    assert found.ended.startswith("StuckError: rl step 1: nothing for 0 s")
    assert found.steps == 0


# lengths, measurements


def test_lengths_have_the_mean_that_was_asked_for_and_none_is_above_the_longest() -> None:
    for tail in (0.0, 0.5, 1.2):
        lengths = with_mean(LogNormal(mean=300.0, tail=tail, longest=1000.0, seed=1), 300.0)
        drawn = [tokens for ticket in range(4000) for tokens in lengths.of(ticket, 4)]
        assert fmean(drawn) == pytest.approx(300, rel=0.03)
        assert max(drawn) <= 1000
        assert cut_mean(lengths) == pytest.approx(300, rel=1e-6)
        assert lengths.of(7, 4) == lengths.of(7, 4)
    with pytest.raises(ValueError, match="none may have more than 1,000"):
        with_mean(LogNormal(mean=300.0, tail=1.0, longest=1000.0, seed=1), 1000.0)


def test_recorded_groups_are_drawn_whole(tmp_path: Path) -> None:
    def line(ticket: int, *turns: int, failure: str | None = None) -> str:
        return json.dumps(
            {"ticket": ticket, "failure": failure, "turns": [{"sampled_ids": [1] * count} for count in turns]}
        )

    path = tmp_path / "rl-10.jsonl"
    path.write_text("\n".join([line(1, 3), line(1, 2, 5), line(2, 9), line(2, 8), line(2, 1, failure="x")]) + "\n")
    assert recorded_groups(path) == [(3, 7), (9, 8)]
    recorded = Recorded(groups=((3, 7), (9, 8)), seed=0)
    assert {tuple(recorded.of(ticket, 2)) for ticket in range(40)} == {(3, 7), (9, 8)}
    drawn = [tokens for ticket in range(512) for tokens in recorded.of(ticket, 2)]
    assert sum(drawn) / len(drawn) == pytest.approx(6.75, abs=0.5)


def test_an_engines_pass_is_found_from_the_steps_of_a_run() -> None:
    fixed, each = 0.02, 0.003
    rows: list[MetricsRow] = []
    for passes, tokens in ((100, 800), (150, 900), (90, 1000)):
        busy = fixed * passes + each * tokens
        values = {
            "engine/passes": 2.0 * passes,
            "engine/sampled_tokens": 2.0 * tokens,
            "engine/busy_s": 2.0 * busy,
        }
        rows.append(MetricsRow(stage="rl", step=len(rows), time=0.0, values=values))
    assert engine_pass(rows, engines=2) == pytest.approx((fixed, each))


def test_a_run_is_measured_by_its_own_settings_and_its_engines_by_the_time_that_they_were_busy(tmp_path: Path) -> None:
    demo = Path("configs/demo.yaml")
    own = load_config(demo, ["rollout.workers=2", "rl.max_lag=1", "rl.group_size=4"])
    save_config(own, tmp_path / "config.yaml")
    values = {
        "engine/passes": 2
        * 500.0,  # two engines, each 500 in 4 s of the 10 s that a step takes, of which the learner has 9
        "engine/busy_s": 2 * 4.0,
        "engine/sampled_tokens": 2 * 500.0,
        "rollout/answers": 100.0,
        "rollout/tokens_per_s": 100.0,
        "train/tokens_per_s": 400.0,
        "train/step_seconds": 5.0,
        "time/step_s": 10.0,
        "time/wait_s": 0.5,
        "time/learn_s": 9.0,
        "time/batch_s": 0.0,
        "push/load_s": 0.0,
        **dict.fromkeys(("time/publish_s", "time/log_s", "time/save_s", "episode/step_s", "episode/rest_s"), 0.0),
    }
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        log.append("rl", step, values)
    given = ["rollout.workers=4", "rl.max_lag=0", "rl.group_size=8"]
    ground = ground_of(demo, given, gpus="8xH100-80G", assumptions=Assumptions(), measured=tmp_path)
    assert ground.speeds.pass_s[1] == pytest.approx(4 / 500)
    assert ground.work.groups == 100 / 4
    assert ground.loop.group_size == 8
    assert ground.speeds.learn_token_s == pytest.approx(9 / 2000)


# the page


def figures(table: str) -> list[list[str]]:
    """The cells of a table, without the last column: what a simulation really took."""
    return [re.split(" {2,}", line.strip())[:-1] for line in table.splitlines()]


def test_the_first_table_of_the_page_is_what_is_simulated() -> None:
    study = STUDIES[0]
    _, _, after = PAGE.read_text().partition(f"<!-- {study.name}: written by make scaling -->")
    table = after.partition("```text\n")[2].partition("\n```")[0]
    assert len(figures(table)) == 1 + 6 * 4
    assert figures(table) == figures(table_text(run(study))), "make scaling writes it"


# the command

GPUS = ("simulate", "configs/scaling.yaml", "--gpus", "8xH100-80G")


def test_the_command_prints_every_case_and_writes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "study.json"
    given = [*GPUS, "--engines", "2,4", "--max-lag", "0,1", "--steps", "3", "--json", "--out", str(out)]
    assert main([*given, "rl.groups_per_step=8", "rl.group_size=4"]) == 0
    found = json.loads(capsys.readouterr().out)
    cases = {(case["engines"], case["max_lag"]): case for case in found["cases"]}
    assert list(cases) == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert cases[4, 0]["samples_per_s"] > cases[2, 0]["samples_per_s"]
    assert cases[2, 1]["samples_per_s"] > cases[2, 0]["samples_per_s"]
    assert found["durations"] == "H100-80G"
    assert out.with_suffix(".svg").read_text().startswith("<?xml")
    assert json.loads(out.read_text()) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("configs/scaling.yaml",), "nothing says how fast engines and learner are"),
        ((*GPUS[1:], "--engines", "0"), "--engines 0: must be 1 or more"),
        ((*GPUS[1:], "--tail", "9"), "--tail 9: must lie between 0"),
        ((*GPUS[1:], "--deaths", "-1"), "--deaths -1: must be 0 or more"),
        ((*GPUS[1:], "--over-sampling", "2", "--max-lag", "1"), "over_sampling=2.0 must be above 0 and at most"),
        ((*GPUS[1:], "--measured", "runs/none"), "--measured takes the durations of a run, not of --gpus"),
        (("configs/demo.yaml", "--measured", "runs/none"), "runs/none is no run's folder with steps"),
        ((*GPUS[1:], "placement=shared", "rl.max_lag=0"), "share devices, which is not simulated"),
    ],
)
def test_what_makes_no_sense_is_refused(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *given]) == 2
    assert said in capsys.readouterr().err
