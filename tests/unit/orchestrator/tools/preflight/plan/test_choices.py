"""`temper doctor --plan`: what its figures go by where settings, placements or rates are other than usual."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.public_models import NANO_9B, PUBLIC
from transformers import AutoModelForCausalLM, Qwen3Config

from temper.learner.config import LearnerConfig
from temper.learner.saving import HEADERS_BYTES, checkpoint_bytes
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import named_site
from temper.orchestrator.tools.preflight.plan.limits import run_limits
from temper.orchestrator.tools.preflight.plan.model import counted
from temper.orchestrator.tools.preflight.plan.plan import make_plan, planned_config
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.step_time import learning, step_time
from temper.orchestrator.tools.preflight.plan.work import work_of
from temper.rollout.episodes.episode import EpisodeLimits

EIGHT = Path("configs/recipes/eight_gpus.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nano")
    (made / "config.json").write_text(json.dumps(NANO_9B))
    return made


@pytest.fixture(scope="module")
def usual(folder: Path) -> Planner:
    site = named_site("8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    config, model = planned_config(EIGHT, [f"model.path={folder}"], site)
    return Planner(config, model, site, Assumptions())


def other(planner: Planner, *assumed: str, gpus: str = "8xH100-80G", **learner: object) -> Planner:
    """The same with other assumptions, GPUs and settings of the learner, and an engine on each GPU that is left."""
    site = named_site(gpus, host_gib_per_gpu=128.0, shm_gib=1.0)
    config = replace(planner.config, learner=replace(planner.config.learner, **learner))  # type: ignore[arg-type]
    config = replace(config, rollout=replace(config.rollout, workers=max(1, site.hardware.gpus - config.learner.ranks)))
    return Planner(config, planner.model, site, Assumptions().given(assumed))


def test_remedies_for_a_rank_name_no_gpus_that_engines_have_and_no_pass_that_is_as_long_anyway(usual: Planner) -> None:
    full = other(
        usual, ranks=2, zero_stage=1, micro_batch_tokens=8192
    )  # and 6 engines; the longest sequence has 12,288
    (failed,) = [one for one in run_limits(full) if one.what == "a rank's memory"]
    assert not failed.holds
    assert "learner.zero_stage=3" in failed.remedy
    assert "learner.ranks" not in failed.remedy
    assert "micro_batch_tokens" not in failed.remedy
    wide = other(usual, ranks=2, zero_stage=1, micro_batch_tokens=16384)
    (failed,) = [one for one in run_limits(wide) if one.what == "a rank's memory"]
    assert "learner.micro_batch_tokens=12288" in failed.remedy


def test_a_rank_by_itself_is_told_no_stage_of_zero_which_shares_nothing(usual: Planner) -> None:
    alone = other(usual, gpus="2xH200-141G", ranks=1, zero_stage=1)
    (failed,) = [one for one in run_limits(alone) if one.what == "a rank's memory"]
    assert "learner.offload=cpu" in failed.remedy
    assert "zero_stage" not in failed.remedy


@pytest.mark.parametrize(
    "learner",
    [{"frozen": ("embed",)}, {"zero_stage": 3, "offload": "nvme", "offload_dir": "offloaded"}],
    ids=["adapters beside frozen parameters", "main memory in place of a disk's folder"],
)
def test_a_remedy_that_the_learner_refuses_is_none(usual: Planner, learner: dict[str, object]) -> None:
    small = other(usual, gpus="8xL4-24G", ranks=2, **learner)
    (failed,) = [one for one in run_limits(small) if one.what == "a rank's memory"]
    assert not failed.holds
    assert failed.remedy
    assert "lora" not in failed.remedy or "frozen" not in learner


def test_states_on_a_disk_are_not_in_main_memory(usual: Planner) -> None:
    disk = other(usual, ranks=4, zero_stage=3, offload="nvme", offload_dir="offloaded")
    memory = other(usual, ranks=4, zero_stage=3, offload="cpu")
    assert disk.rank is not None
    assert memory.rank is not None
    assert (disk.host.held, memory.host.held) == (0, 4 * memory.rank.offloaded)
    assert disk.rank.on_disk == memory.rank.offloaded == (4 + 4 + 8 + 2) * usual.model.parameters // 4


def test_devices_in_shifts_put_aside_what_one_machine_has_of_each_side(folder: Path) -> None:
    site = named_site("2x8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    given = [f"model.path={folder}", "placement=shared", "rl.max_lag=0", "learner.ranks=16", "rollout.workers=16"]
    two = Planner(*planned_config(EIGHT, given, site), site, Assumptions())
    rank, engine = two.rank, two.engine
    assert rank is not None
    assert engine is not None
    assert rank.moved == rank.states - 3 * 2**30
    assert two.host.held == 8 * max(rank.moved, engine.weights)
    time = two.time()
    assert time is not None
    assert time.shift_s == pytest.approx(2 * (rank.moved + engine.weights) / 6e9)


def test_an_answer_is_as_long_as_its_turns_and_its_episode_allow(usual: Planner) -> None:
    assert usual.loop is not None
    loop = usual.config.settings(usual.loop)
    limits = EpisodeLimits(turn_tokens=100, total_tokens=1000)  # prompts of 250
    lengths = {
        (turns, given): (work.answer_tokens, work.longest_answer)
        for turns in (1, 4, 20, None)
        for given in (0, 60, 5000)
        for work in [work_of("rl", loop, limits, Assumptions(answer_tokens=given), turns=turns)]
    }
    assert {key[0]: both for key, both in lengths.items() if key[1] == 0} == {
        1: (50, 100),
        4: (200, 400),
        20: (375, 750),
        None: (375, 750),
    }
    assert usual.turns == 4  # of its tools; mathematics and code have one turn
    short = replace(usual.config.rollout, limits=replace(usual.config.rollout.limits, turns=2))
    cut = Planner(replace(usual.config, rollout=short), usual.model, usual.site, Assumptions())
    assert cut.turns == 2
    assert (lengths[1, 60], lengths[4, 60]) == ((60, 100), (60, 120))
    assert (lengths[1, 5000], lengths[None, 5000]) == ((100, 100), (750, 750))


def test_halves_of_one_gpu_take_the_time_of_both_sides(usual: Planner) -> None:
    alone = other(usual, gpus="1xH200-141G", ranks=1)
    assert alone.halves
    assert usual.rates is not None
    assert usual.work is not None
    assert usual.work.lag
    time = step_time(usual.rates, usual.work, engines=1, one_device=alone.halves)
    assert time.step_s == pytest.approx(time.generate_s + time.load_s + time.learn_s + time.publish_s)


def test_a_further_epoch_takes_as_long_as_the_first(usual: Planner) -> None:
    assert usual.engine is not None
    assert usual.work is not None
    fleet, once = usual.fleet, usual.work
    twice = replace(once, epochs=2)
    assert fleet is not None
    assert fleet.learner.zero_stage == 3
    assert fleet.scores == 0
    assert learning(fleet, twice, usual.assumptions) == pytest.approx(2 * learning(fleet, once, usual.assumptions))


def test_json_has_the_sums_of_the_seconds(usual: Planner) -> None:
    found = json.loads(make_plan(usual).json())
    time = found["time"]
    assert time["hours"] == pytest.approx(300 * time["step_s"] / 3600)
    assert time["tokens"] == pytest.approx(time["sampled_per_s"] * time["hours"] * 3600)
    sides = (time["generate_s"] + time["load_s"], time["learn_s"] + time["publish_s"])
    assert time["limited_by"] == ("generating" if sides[0] >= sides[1] else "learning")
    assert max(sides) == time["step_s"]


def test_tied_weights_are_counted_once_in_a_checkpoint() -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 500,
    }
    config = Qwen3Config(num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, **sizes)
    asked = checkpoint_bytes(AutoModelForCausalLM.from_config(config), bf16=False)
    assert asked - HEADERS_BYTES == counted(config, LearnerConfig(), name="tied").checkpoint_bytes


def test_a_teacher_takes_the_memory_and_the_passes_of_its_own_parameters(tmp_path: Path) -> None:
    site = named_site("2xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    names, planned = ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B"), []
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(PUBLIC[name][0]))
    for teacher in names:
        given = [f"model.path={tmp_path / names[0]}", f"distill.teacher.path={tmp_path / teacher}"]
        config, model = planned_config(Path("configs/recipes/distill.yaml"), given, site)
        planned.append(Planner(config, model, site, Assumptions()))
    assert [one.rank and one.rank.reference for one in planned] == [2 * PUBLIC[name][1] for name in names]
    own, large = (one.time() for one in planned)
    assert own is not None
    assert large is not None
    active = PUBLIC[names[1]][1] - 151936 * 4096  # its embedding is not tied, and only looked up
    passes = [2 + 4 + 2 + 2 * share for share in (1, active / PUBLIC[names[0]][1])]
    assert large.learn_s / own.learn_s == pytest.approx(passes[1] / passes[0], rel=0.02)  # beside the optimiser's step
