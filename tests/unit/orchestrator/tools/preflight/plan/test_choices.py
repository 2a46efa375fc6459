"""`temper plan`: what its figures go by where settings, placements or rates are other than usual."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean

import pytest
from support.public_models import NANO_9B, PUBLIC
from transformers import AutoModelForCausalLM, Qwen3Config

from temper.learner.config import LearnerConfig
from temper.learner.saving import HEADERS_BYTES, checkpoint_bytes
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.tools.preflight.plan.answer import answer_plan
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import named_site
from temper.orchestrator.tools.preflight.plan.comparison import Compared, measured_work
from temper.orchestrator.tools.preflight.plan.model import counted
from temper.orchestrator.tools.preflight.plan.plan import planned_config
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.run_limits import run_limits
from temper.orchestrator.tools.preflight.plan.seconds.rates import learning
from temper.orchestrator.tools.preflight.plan.seconds.work import work_of
from temper.orchestrator.tools.preflight.plan.split import best_split
from temper.orchestrator.tools.preflight.plan.trials import held, tried
from temper.orchestrator.tools.preflight.simulation.lengths import LogNormal, with_mean
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario
from temper.orchestrator.tools.preflight.simulation.simulation import simulate
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
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


def test_a_rate_that_is_given_alone_is_taken_over_that_of_the_gpus(usual: Planner) -> None:
    assert usual.rates is not None
    sampled = other(usual, "sampled_per_s=1000", ranks=4).rates
    assert sampled is not None
    assert (sampled.sampled_per_s, sampled.trained_per_s) == (1000, usual.rates.trained_per_s)
    trains = other(usual, "trained_per_s=9000", ranks=4)
    assert trains.rates is not None
    assert (trains.rates.sampled_per_s, trains.rates.trained_per_s) == (usual.rates.sampled_per_s, 9000)
    assert best_split(trains) is None  # what other ranks would do nobody said
    lone = Planner(usual.config, usual.model, replace(usual.site, card=None), trains.assumptions)
    with pytest.raises(
        ValueError, match="trained_per_s=9000: nothing says the other rate; add --assume sampled_per_s="
    ):
        lone.time()


def test_the_longest_answer_takes_a_sequences_share_of_the_rate_that_is_given(usual: Planner) -> None:
    time = other(usual, "sampled_per_s=1000", ranks=4).time()
    assert time is not None
    engine = usual.engine
    assert engine is not None
    fitting = engine.sequences(int(time.work.prompt_tokens + time.work.answer_tokens))
    batch = min(usual.config.rollout.engine.max_sequences, fitting, time.work.in_flight / 4)
    assert batch > 50
    assert time.longest_s == pytest.approx(time.work.longest_answer * batch / 1000)


def test_remedies_for_a_rank_name_no_gpus_that_engines_have_and_no_pass_that_is_as_long_anyway(usual: Planner) -> None:
    full = other(
        usual, ranks=2, zero_stage=1, micro_batch_tokens=8192
    )  # and 6 engines; the longest sequence has 12,288
    (failed,) = [one for one in run_limits(full, None) if one.what == "a rank's memory"]
    assert not failed.holds
    assert "learner.zero_stage=3" in failed.remedy
    assert "learner.ranks" not in failed.remedy
    assert "micro_batch_tokens" not in failed.remedy
    wide = other(usual, ranks=2, zero_stage=1, micro_batch_tokens=16384)
    (failed,) = [one for one in run_limits(wide, None) if one.what == "a rank's memory"]
    assert "learner.micro_batch_tokens=12288" in failed.remedy


def test_a_rank_by_itself_is_told_no_stage_of_zero_which_shares_nothing(usual: Planner) -> None:
    alone = other(usual, gpus="2xH200-141G", ranks=1, zero_stage=1)
    (failed,) = [one for one in run_limits(alone, None) if one.what == "a rank's memory"]
    assert "learner.offload=cpu" in failed.remedy
    assert "zero_stage" not in failed.remedy


@pytest.mark.parametrize(
    "learner",
    [{"frozen": ("embed",)}, {"zero_stage": 3, "offload": "nvme", "offload_dir": "offloaded"}],
    ids=["adapters beside frozen parameters", "main memory in place of a disk's folder"],
)
def test_a_remedy_that_the_learner_refuses_is_none(usual: Planner, learner: dict[str, object]) -> None:
    small = other(usual, gpus="8xL4-24G", ranks=2, **learner)
    (failed,) = [one for one in run_limits(small, None) if one.what == "a rank's memory"]
    assert not failed.holds
    assert failed.remedy
    assert "lora" not in failed.remedy or "frozen" not in learner


def test_a_remedy_for_a_ranks_memory_leaves_main_memory_enough(usual: Planner) -> None:
    def remedy(host_gib_per_gpu: float) -> str:
        site = named_site("8xL40S-48G", host_gib_per_gpu=host_gib_per_gpu, shm_gib=1.0)
        config = replace(usual.config, learner=replace(usual.config.learner, ranks=4, zero_stage=3))
        (failed,) = [
            one
            for one in run_limits(Planner(config, usual.model, site, usual.assumptions), None)
            if one.what == "a rank's memory"
        ]
        assert not failed.holds
        return failed.remedy

    assert "learner.offload=cpu" in remedy(128.0)
    assert "learner.offload=cpu" not in remedy(18.0)


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


def split_of(folder: Path, gpus: str, *, ranks: int, host_gib: float = 128.0) -> Planner:
    """A plan whose split is given, with room for that many ranks of ZeRO-3."""
    site = named_site(gpus, host_gib_per_gpu=host_gib, shm_gib=1.0)
    passes = ("learner.zero_stage=3", "learner.recompute=full", "learner.shared_prompts=false")
    sizes = ("learner.micro_batch_tokens=16384", "rollout.engine.max_sequences=256")
    split = (f"learner.ranks={ranks}", f"rollout.workers={site.hardware.gpus - ranks}")
    return Planner(*planned_config(EIGHT, [f"model.path={folder}", *passes, *sizes, *split], site), site, Assumptions())


def test_the_better_split_of_many_gpus_is_the_fastest_of_all(folder: Path) -> None:
    planner = split_of(folder, "8x8xH200-141G", ranks=4)
    found, fastest = best_split(planner), inf
    for ranks in range(1, 64):
        one = tried(planner, {"learner.ranks": ranks, "rollout.workers": 64 - ranks})
        time = None if one is None or not held(planner) <= held(one) else one.time()
        fastest = fastest if time is None else min(fastest, time.step_s)
    assert found is not None
    assert found.step_s == fastest


def test_a_better_split_goes_by_the_batches_of_the_stages_that_run_alone(folder: Path) -> None:
    loop = split_of(folder, "8x8xH200-141G", ranks=4)
    few = replace(loop.config.sections["rl"], groups_per_step=3, group_size=4)
    found = best_split(tuned(loop, sections={**loop.config.sections, "rl": few}))
    assert found is not None
    assert found.ranks <= 12  # more can't share the answers of a step
    even = best_split(tuned(loop, stages=["sft", "rl"]))
    assert even is not None
    assert 64 % even.ranks == 0  # sequences of a batch of sft


def tuned(planner: Planner, **settings: object) -> Planner:
    config = replace(planner.config, **settings)  # type: ignore[arg-type]
    return Planner(config, planner.model, planner.site, planner.assumptions)


def test_a_better_split_hits_no_limit_that_is_kept_without_it(folder: Path) -> None:
    roomy = best_split(split_of(folder, "8xH200-141G", ranks=2))
    tight = best_split(split_of(folder, "8xH200-141G", ranks=2, host_gib=16.0))
    assert roomy is not None
    assert tight is not None
    assert roomy.ranks > 3  # each reads 33.1 GiB of the model into main memory, which has 128
    assert tight.ranks == 3


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
    time = alone.step(usual.rates, usual.work)
    assert time.step_s == pytest.approx(time.generate_s + time.load_s + time.learn_s + time.publish_s)


def test_a_further_epoch_takes_as_long_as_the_first(usual: Planner, tmp_path: Path) -> None:
    assert usual.engine is not None
    assert usual.work is not None
    fleet, once = usual.fleet, usual.work
    twice = replace(once, epochs=2)
    assert fleet is not None
    assert fleet.learner.zero_stage == 3
    assert fleet.scores == 0
    assert learning(fleet, twice, usual.assumptions) == pytest.approx(2 * learning(fleet, once, usual.assumptions))
    assert usual.rates is not None
    assert usual.step(usual.rates, twice).learn_s == pytest.approx(
        2 * usual.step(usual.rates, once).learn_s - usual.rates.updates_s
    )
    values = {"train/tokens_per_s": 800.0, "train/step_seconds": 2.0, "rollout/answers": 8.0, "time/step_s": 4.0}
    row = {
        "stage": "rl",
        "step": 1,
        "time": 1.0,
        **values,
        "rollout/tokens_per_s": 100.0,
        "engine/sampled_tokens": 400.0,
    }
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    work = measured_work(twice, read_metrics(tmp_path / "metrics.jsonl"))
    assert (work.prompt_tokens, work.answer_tokens) == (50, 50)  # of 1,600 tokens 800 are seen once
    assert work.longest_answer == pytest.approx(50 * twice.longest_answer / twice.answer_tokens)
    short = measured_work(replace(twice, answer_limit=60.0), read_metrics(tmp_path / "metrics.jsonl"))
    assert short.longest_answer == 60


def test_a_figure_of_which_nothing_was_measured_has_no_error() -> None:
    assert Compared(name="bytes", predicted=1.0, measured=0.0).error is None
    assert Compared(name="bytes", predicted=0.0, measured=0.0).error is None


def test_json_has_the_sums_of_the_seconds_and_no_price_that_is_no_number(folder: Path) -> None:
    def planned(price: float) -> str:
        given, assumed = [f"model.path={folder}"], Assumptions()
        return answer_plan(
            EIGHT, given, gpus="8xH100-80G", assumptions=assumed, price=price, probe=False, as_json=True
        )[0]

    found = json.loads(planned(2.0))
    time = found["time"]
    assert time["hours"] == pytest.approx(300 * time["step_s"] / 3600)
    assert found["cost"] == pytest.approx(2.0 * found["gpus"] * time["hours"])
    assert time["tokens"] == pytest.approx(time["sampled_per_s"] * time["hours"] * 3600)
    sides = (time["generate_s"] + time["load_s"], time["batch_s"] + time["learn_s"] + time["publish_s"])
    assert time["limited_by"] == ("generating" if sides[0] >= sides[1] else "learning")
    assert max(sides) == time["step_s"]
    with pytest.raises(ValueError, match="--price nan: must be a number of 0 or more"):
        planned(float("nan"))


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


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 300])
def test_the_mean_lag_is_that_of_a_queue_whose_places_are_never_free(usual: Planner, lag: int, steps: int) -> None:
    assert usual.loop is not None
    loop = replace(usual.config.settings(usual.loop), max_lag=lag, steps=steps)
    admitted, lags = [0] * (1 + lag), []  # a place for the groups of each step
    for version in range(steps):
        lags.append(version - admitted.pop(0))
        admitted.append(version + 1)
    work = work_of("rl", loop, usual.config.rollout.limits, Assumptions(), turns=None)
    assert work.mean_lag == pytest.approx(fmean(lags))


def test_a_simulated_run_has_the_mean_lag_that_is_planned(usual: Planner) -> None:
    assert usual.loop is not None
    loop = replace(
        usual.config.settings(usual.loop), steps=100_000, groups_per_step=8, group_size=2, max_lag=3, over_sampling=1.5
    )
    planned = work_of("rl", loop, usual.config.rollout.limits, Assumptions(), turns=None).mean_lag
    speeds = Speeds(
        pass_s=(0.0, *(0.01,) * 16),
        learn_token_s=1e-4,
        learn_fixed_s=0.0,
        publish_s=0.5,
        load_s=0.2,
        transport="shared_memory",
        prompt_tokens=0.0,
        source="test",
        start_s=1.0,
    )
    lengths = with_mean(LogNormal(mean=100, tail=1.0, longest=1000, seed=0), 100)
    found = simulate(
        Scenario(
            loop=replace(loop, timeout_s=1000.0),
            engines=2,
            speeds=speeds,
            lengths=lengths,
            supervision=usual.config.supervision,
        )
    )
    assert found.lag_max > found.lag_mean
    assert found.lag_mean == pytest.approx(planned, abs=0.1)
