"""Alarms for values outside their band, the failure watch, early ends of stages, and state after a resume."""

import asyncio
import io
import math
from pathlib import Path

import pytest
from support.refusals import refuses
from unit.orchestrator.loop.test_loop import ToldRun, ToldTrainer, told_folder

from temper.envs.core.task import EnvRef, Task
from temper.learner.losses.config import LossConfig
from temper.orchestrator.config.loop import DistillConfig, RlConfig
from temper.orchestrator.evaluation.record import read_run
from temper.orchestrator.loop.config import Band, BandsConfig
from temper.orchestrator.loop.watches import (
    REMEDIES,
    BandWatch,
    FailureWatch,
    NothingTrained,
    OutOfBand,
    SkipWatch,
    TooManyFailures,
)
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.metrics_log import ALARM, MetricsLog, read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.context import skipped_steps
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.registry import RL
from temper.orchestrator.tools.inspect.report.report import write_report
from temper.rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion

ENTROPY = BandsConfig(entropy=Band(low=0.2, high=2.0, stop_after=3))


def fed(watch: BandWatch, *values: float) -> list[dict[str, str]]:
    return [watch.add({"train/entropy": value, "train/kl": 99.0}) for value in values]


def test_an_alarm_is_told_when_a_number_leaves_its_band_and_when_it_comes_back() -> None:
    watch = BandWatch(ENTROPY, setting="rl.bands")
    told = [one.get("rl.bands.entropy", "") for one in fed(watch, 0.5, 0.1, 0.05, 0.3, 2.5)]
    facts = [None, ("0.1", "low=0.2", REMEDIES["entropy"]), None, ("0.3", "2 steps"), ("2.5", "high=2.0")]
    for text, named in zip(told, facts, strict=True):
        assert bool(text) == bool(named)
        assert all(one in text for one in named or ()), text
    assert watch.add({}) == {}  # not measured
    (unknown,) = fed(BandWatch(ENTROPY, setting="rl.bands"), math.nan)
    assert "nan" in unknown["rl.bands.entropy"]


def test_groups_of_equal_rewards_are_no_alarm_where_they_teach_too() -> None:
    def signal(**given: object) -> Band:
        return RlConfig(**given).watched_bands.nonzero_advantage  # type: ignore[arg-type]

    over_the_batch = LossConfig(advantage="reinforce_pp")
    assert signal().low == 0.1
    assert signal(loss=over_the_batch).low is None
    assert signal(loss=over_the_batch, bands=BandsConfig(nonzero_advantage=Band(low=0.3))).low == 0.3


def test_without_a_setting_answers_that_are_cut_off_and_groups_without_signal_are_told_once_they_last() -> None:
    """A long-thinking model with short limits: every answer is truncated, every group has reward 0."""
    cut = {"rollout/truncated": 1.0, "rollout/nonzero_advantage": 0.0}
    well = {
        "rollout/truncated": 0.2,
        "rollout/nonzero_advantage": 0.5,
        "train/entropy": 0.01,
        "train/mismatch_abs": 9.0,
    }
    watch = BandWatch(RlConfig().bands, setting="rl.bands")
    assert [watch.add(metrics) for metrics in (well, cut, cut, well, cut, cut)] == [{}] * 6  # chance in few groups
    told = watch.add(cut)
    assert list(told) == ["rl.bands.truncated", "rl.bands.nonzero_advantage"]
    assert all(one in told["rl.bands.truncated"] for one in ("high=0.5", "3 steps", "rollout.limits.turn_"))
    assert all(one in told["rl.bands.nonzero_advantage"] for one in ("low=0.1", "3 steps"))
    for step in range(100):
        assert watch.add(cut) == {}
        watch.check(step)  # warns and does not stop
    assert "103 steps" in watch.add(well)["rl.bands.nonzero_advantage"]
    of_a_teacher = BandWatch(DistillConfig().bands, setting="distill.bands")
    assert [list(of_a_teacher.add(cut)) for _ in range(3)] == [[], [], ["distill.bands.truncated"]]


def test_so_many_steps_outside_in_a_row_end_the_stage_also_where_a_run_went_on_in_between() -> None:
    watch = BandWatch(ENTROPY, setting="rl.bands")
    for value in (0.1, 0.1, 0.5, 0.1, 0.1):
        fed(watch, value)
        watch.check(5)
    again = BandWatch(ENTROPY, setting="rl.bands")
    fed(again, 0.1, 0.1, 0.5, 0.1, 0.1)  # the rows of those steps
    assert fed(again, 3.0) == [{}]
    with pytest.raises(OutOfBand, match=r"rl\.bands\.entropy"):
        again.check(6)
    alarms_alone = BandWatch(BandsConfig(entropy=Band(low=0.2)), setting="rl.bands")
    fed(alarms_alone, *[0.1] * 100)
    alarms_alone.check(100)


@pytest.mark.parametrize(
    ("bands", "named"),
    [
        (BandsConfig(nonzero_advantage=Band(low=0.5, high=0.1)), ("rl.bands.nonzero_advantage.low=0.5", "high=0.1")),
        (BandsConfig(entropy=Band(low=0.5, stop_after=-1)), ("rl.bands.entropy.stop_after=-1",)),
        (BandsConfig(nonzero_advantage=Band(low=0.5, alarm_after=0)), ("rl.bands.nonzero_advantage.alarm_after=0",)),
        (BandsConfig(truncated=Band(stop_after=2)), ("rl.bands.truncated.stop_after=2",)),
        (BandsConfig(kl=Band(high=1.0)), ("rl.bands.kl", "rl.loss.kl_coefficient")),
    ],
)
def test_a_band_that_can_not_be_is_refused(bands: BandsConfig, named: tuple[str, ...]) -> None:
    with refuses(*named):
        RlConfig(bands=bands)
    if bands.kl.is_watched:  # valid with a reference model
        RlConfig(bands=bands, loss=LossConfig(kl_coefficient=0.1))


def test_alarms_of_steps_that_are_made_again_are_forgotten_with_them_and_other_events_stay(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        log.append("rl", step, {"train/skipped": float(step > 1)})
        log.event("rl", step, ALARM, {"rl.bands.kl": "outside"})
        log.event("rl", step, "changed", {"rl.steps": "2 -> 9"})
    log.truncate("rl", 2)
    kept = [(row.step, row.event["kind"] if row.event else "") for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert kept == [(1, ""), (1, ALARM), (1, "changed"), (2, ""), (2, ALARM), (2, "changed"), (3, "changed")]


def test_skipped_steps_before_a_run_went_on_count_among_those_in_a_row(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step, skipped in enumerate((1.0, 0.5, 1.0, 1.0), 1):
        log.append("rl", step, {"train/skipped": skipped})
    watch = SkipWatch(3, stage="rl")
    watch.restore(skipped_steps(read_metrics(tmp_path / "metrics.jsonl")))
    with pytest.raises(NothingTrained, match="3 to 5"):
        watch.add(5, skipped=True, evidence="")


class Trains(ToldTrainer):
    """Skips no step, because a skipped step keeps its answers."""

    skips = False


def test_a_stage_tells_its_alarms_in_metrics_and_report_and_ends_where_they_last(tmp_path: Path) -> None:
    said = io.StringIO()
    overrides = ["rl.groups_per_step=2", "rl.max_lag=0", "rl.bands.truncated={high: -1.0, stop_after: 2}"]
    config = load_config(Path("configs/demo.yaml"), overrides)
    folder = told_folder(tmp_path)
    with Progress(stream=said) as progress:
        run = ToldRun(config, folder=folder, progress=progress)
        run.trainer = Trains(run)
        stage = LoopStage(run, config.section(RlConfig), single_instance(RL))
        with pytest.raises(OutOfBand, match=r"rl\.bands\.truncated"):
            asyncio.run(stage.run())
    folder.close()
    (folder.root / "config.yaml").write_text("name: told", encoding="utf-8")
    record = read_run(folder.root)
    (alarm,) = record.alarms
    assert (alarm.stage, alarm.step, alarm.kind, list(alarm.what)) == ("rl", 2, ALARM, ["rl.bands.truncated"])
    assert list(folder.trajectory_files("rl")) == [2]  # answers of the alarm, for inspection
    assert f"rl step 2: rl.bands.truncated: {alarm.what['rl.bands.truncated']}" in said.getvalue()
    assert [row.step for row in record.rows if row.is_measured] == [1, 2]
    page = write_report(folder.root).html.read_text(encoding="utf-8")
    assert "<h2>Alarms</h2>" in page
    assert "<h2>Events</h2>" not in page


TASK = Task(env=EnvRef(name="math"), key="k", messages=({"role": "user", "content": "?"},), spec={})
ENGINE = Failure(kind=FailureKind.ENGINE, message="EngineFault: the engine is dead")
ENVIRONMENT = Failure(kind=FailureKind.ENVIRONMENT, message="ConnectionError: refused")


def group(right: int, *, failed: tuple[Failure, ...] = (), retried: tuple[Failure, ...] = ()) -> Group:
    return Group(
        ticket=Ticket(number=0, task=TASK, admitted=WeightVersion(step=0)),
        trajectories=tuple(Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=1.0) for _ in range(right)),
        failed=tuple(Trajectory(task=TASK, turns=(), stop=Stop.FAILURE, failure=failure) for failure in failed),
        retried=retried,
    )


def watch(highest: float = 0.5) -> FailureWatch:
    return FailureWatch(highest, setting="rl.max_failures")


def test_a_large_group_counts_as_a_whole() -> None:
    few = watch()
    few.add(group(128, retried=(ENVIRONMENT,) * 33))  # 20 % of 161 episodes
    few.conclude()
    with pytest.raises(TooManyFailures, match="129 .* 257"):
        watch().add(group(128, retried=(ENVIRONMENT,) * 129))


@pytest.mark.parametrize("size", [1, 8, 24, 40, 64, 200])
def test_the_same_share_of_failures_halts_at_any_size_of_a_group(size: int) -> None:
    for share, halts in ((0.4, False), (0.6, True)):
        seen, failed = watch(), 0
        try:
            for number in range(1, 400 // size + 2):
                due = round(share * size * number) - failed
                seen.add(group(size - due, failed=(ENVIRONMENT,) * due))
                failed += due
        except TooManyFailures:
            assert halts
        else:
            assert not halts


def test_the_engine_is_named_where_the_engine_is_dead_and_the_environment_where_it_is_down() -> None:
    with pytest.raises(TooManyFailures, match=r"engine.*'math'.*engine 63, environment 1"):
        watch().add(group(0, failed=(ENGINE,) * 63 + (ENVIRONMENT,)))
    with pytest.raises(TooManyFailures, match=r"^environment 'math'.*rl\.max_failures=0\.5.*refused"):
        watch().add(group(0, failed=(ENVIRONMENT,) * 63, retried=(ENGINE,)))


def test_fewer_episodes_are_judged_when_no_more_will_come() -> None:
    seen = watch()
    asyncio.run(seen.on(asyncio.sleep(0, group(1, failed=(ENGINE,) * 3))))
    with pytest.raises(TooManyFailures, match="3 .* 4 "):
        seen.conclude()


def test_old_failures_are_forgotten() -> None:
    seen = watch()
    seen.add(group(0, failed=(ENVIRONMENT,) * 8))
    for _ in range(8):
        seen.add(group(8))
    seen.add(group(33, failed=(ENVIRONMENT,) * 31))
    seen.conclude()
