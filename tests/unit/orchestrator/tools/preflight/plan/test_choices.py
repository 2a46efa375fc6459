"""`temper doctor --plan`: figures for unusual settings, placements and rates."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.plans import NANO_9B, NANO_30B, hit, known, plan_on, with_learner
from support.public_models import PUBLIC

from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import CARDS
from temper.orchestrator.pipeline.estimate.limits import advised_limits, run_limits
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.estimate.step_time import work_of
from temper.rollout.config import EpisodeLimits

PROBE = {"name": "probe", "stages": ["init", "rl"], "envs": {"math": {}}}
"""A run that leaves everything to its profile."""


FEW = ("T4-16G", "L40S-48G", "H100-80G")


EXPERTS = ("Qwen/Qwen3-30B-A3B", NANO_30B)


@pytest.mark.parametrize(
    ("form", "card"),
    [
        pytest.param(form, card.name, marks=[] if form == "8x" and card.name in FEW else [pytest.mark.slow])
        for form in ("1x", "2x", "8x", "4x8x")
        for card in CARDS
    ],
)
def test_a_profile_fits_or_is_refused_on_every_card(form: str, card: str) -> None:
    """A refusal has the plan's remedy, and for a rank this is no setting that the profile could have taken."""
    for name in PUBLIC:
        plan = plan_on(f"{form}{card}", name, recipe=PROBE)
        failing = [limit for limit in run_limits(plan) if not limit.holds]
        assert all(one.remedy.startswith("GPUs of ") for one in failing if one.what == "a rank's memory"), name
        if failing:
            with pytest.raises(ValueError, match=re.escape(failing[0].remedy)):
                plan_on(f"{form}{card}", name, recipe=PROBE, refuse=True)


def tokens_per_s(plan: Plan) -> float:
    fleet = known(plan.fleet)
    return 1 / (fleet.pass_s(fleet.batch) / fleet.batch + fleet.prompt_s)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (("rollout.limits.total_tokens=4096",), "off"),
        (("rollout.limits.total_tokens=4096", "envs={tool_use: {max_turns: 8}}"), "auto"),
        (("rollout.limits.total_tokens=4096", "rollout.engine.prefix_caching=on"), "on"),
        (("rollout.limits.total_tokens=4096", "learner.router_replay=true"), "auto"),
    ],
    ids=["short prompts", "several turns", "as set", "recorded experts"],
)
def test_a_hybrid_caches_prefixes_if_the_plan_is_faster(given: tuple[str, ...], chosen: str) -> None:
    """A cached prefix takes a second state of each sequence. Each turn without it computes the earlier ones again."""
    plan = plan_on("8xH100-80G", NANO_9B, *given, recipe=PROBE)
    assert plan.config.rollout.engine.prefix_caching == chosen
    if len(given) == 1 or "envs" in given[1]:
        other = plan_on("8xH100-80G", NANO_9B, *given, "rollout.engine.prefix_caching=off", recipe=PROBE)
        assert tokens_per_s(plan) >= tokens_per_s(other)


def test_an_engine_runs_the_sequences_in_flight_that_fit() -> None:
    """128 groups of 16 answers and as many for the next step are in flight over 8 engines."""
    few, many = (
        plan_on("4x8xH100-80G", NANO_30B, "rollout.limits.total_tokens=4096", *given, recipe=PROBE)
        for given in (("rollout.engine.max_sequences=256",), ())
    )
    assert many.config.rollout.engine.max_sequences == 2 * 128 * 16 // many.config.rollout.workers == 512
    assert tokens_per_s(many) > 1.5 * tokens_per_s(few)
    more = plan_on("4x8xH100-80G", NANO_30B, "rollout.limits.total_tokens=4096", "rl.group_size=64", recipe=PROBE)
    assert more.config.rollout.engine.max_sequences == 1024
    assert "max_cudagraph_capture_size: 1024" in " ".join(one.remedy for one in advised_limits(more))


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_shared_if_the_plan_is_faster(name: str) -> None:
    times = {
        ranks: known(plan_on("4x8xH100-80G", name, "rollout.limits.total_tokens=4096", *given, recipe=PROBE).time)
        for ranks, given in ((0, ()), (1, ("learner.expert_parallel=1",)), (8, ("learner.expert_parallel=8",)))
    }
    assert times[0].step_s == min(times[1].step_s, times[8].step_s)
    if name == NANO_30B:
        assert times[0].step_s < times[1].step_s
    alone = plan_on("4x8xH100-80G", name, "learner.lora={rank: 16}", recipe=PROBE)
    assert alone.config.learner.expert_parallel == 1, "adapters of shared experts are not supported"


@pytest.mark.parametrize(
    ("name", "gpus", "given"),
    [
        ("Qwen/Qwen3-30B-A3B", "4x8xH100-80G", "rollout.limits.total_tokens=4096"),
        (NANO_30B, "4x8xH100-80G", "rollout.limits.total_tokens=4096"),
        ("Qwen/Qwen3-30B-A3B", "8xH200-141G", "learner.offload=cpu"),
        ("Qwen/Qwen3-4B", "8xRTX4060Ti-16G", "rl.steps=1"),
        (NANO_9B, "8xH100-80G", "placement=colocated rl.max_lag=0"),
        ("Qwen/Qwen3-0.6B", "1xRTX4090-24G", "rl.steps=1"),
    ],
)
def test_a_profile_fits_where_smaller_passes_or_more_stages_do(name: str, gpus: str, given: str) -> None:
    plan = plan_on(gpus, name, *given.split(), recipe=PROBE, refuse=True)
    assert [limit for limit in run_limits(plan) if not limit.holds] == []


def test_a_remedy_for_a_rank_changes_only_settings_that_help(usual: Plan) -> None:
    # There are 6 engines, and the longest sequence has 12,288 tokens.
    remedy = hit(with_learner(usual, ranks=2, zero_stage=1, micro_batch_tokens=8192)).remedy
    assert "learner.zero_stage=3" in remedy
    assert "learner.ranks" not in remedy
    assert "micro_batch_tokens" not in remedy
    remedy = hit(with_learner(usual, ranks=2, zero_stage=1, micro_batch_tokens=16384)).remedy
    assert "learner.micro_batch_tokens=12288" in remedy
    remedy = hit(with_learner(usual, "2xH200-141G", ranks=1, zero_stage=1)).remedy
    assert "learner.offload=cpu" in remedy
    assert "zero_stage" not in remedy


@pytest.mark.parametrize(
    "learner",
    [{"frozen": ("embed",)}, {"zero_stage": 3, "offload": "nvme", "offload_dir": "offloaded"}],
    ids=["adapters beside frozen parameters", "main memory in place of a disk's folder"],
)
def test_a_remedy_that_the_learner_refuses_is_none(usual: Plan, learner: dict[str, object]) -> None:
    remedy = hit(with_learner(usual, "8xL4-24G", ranks=2, **learner)).remedy
    assert remedy
    assert "lora" not in remedy or "frozen" not in learner


def test_states_on_a_disk_are_not_in_main_memory(usual: Plan) -> None:
    """DeepSpeed adds up gradients in main memory, and copies them to the disk for an update."""
    disk = with_learner(usual, ranks=4, zero_stage=3, offload="nvme", offload_dir="offloaded")
    memory = with_learner(usual, ranks=4, zero_stage=3, offload="cpu")
    assert memory.host.held == 4 * known(memory.rank).offloaded
    assert disk.host.held == 4 * usual.model.trained
    assert known(disk.rank).on_disk == (4 + 4 + 8 + 2) * usual.model.parameters // 4
    assert known(memory.rank).offloaded == known(disk.rank).on_disk + known(disk.rank).offloaded


@pytest.mark.parametrize(
    ("turns", "given", "mean", "longest"),
    [
        (1, 0, 50, 100),
        (4, 0, 200, 400),
        (20, 0, 375, 750),
        (None, 0, 375, 750),
        (1, 60, 60, 100),
        (4, 60, 60, 120),
        (1, 5000, 100, 100),
        (None, 5000, 750, 750),
    ],
)
def test_an_answer_is_as_long_as_its_turns_and_its_episode_allow(
    usual: Plan, turns: int | None, given: int, mean: float, longest: float
) -> None:
    limits = EpisodeLimits(turn_tokens=100, total_tokens=1000)  # prompts of 250
    loop = usual.config.settings(known(usual.loop))
    work = work_of("rl", loop, limits, Assumptions(answer_tokens=given), turns=turns)
    assert (work.answer_tokens, work.longest_answer) == (mean, longest)


def test_turns_are_those_of_the_environment_with_the_most(usual: Plan) -> None:
    assert usual.turns == 4  # tool_use has four turns, math and code have one
    short = replace(usual.config.rollout, limits=replace(usual.config.rollout.limits, turns=2))
    assert Plan(replace(usual.config, rollout=short), usual.model, usual.site, Assumptions()).turns == 2


def test_a_teacher_takes_the_memory_of_its_own_parameters(models: Path) -> None:
    recipe = Path("configs/recipes/distill.yaml")
    for teacher in ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B"):
        plan = plan_on("2xH100-80G", "Qwen/Qwen3-1.7B", f"distill.teacher.path={models / teacher}", recipe=recipe)
        assert known(plan.rank).reference == 2 * PUBLIC[teacher][1]
