"""Profiles: values resolved from hardware and model, user overrides, and values kept on resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.plans import public_model
from support.refusals import refuses
from support.run_folders import with_checkpoint

from temper.envs.core.setting import Kind, kind_of
from temper.learner.models.config import VOCABULARY, FreshModelConfig
from temper.learner.models.fresh import byte_tokenizer, hybrid_config, make_model
from temper.learner.models.shape import read_shape
from temper.orchestrator.cluster.cluster_hardware import limit_gpus
from temper.orchestrator.cluster.hardware import parse_gpu_sizes, query_torch, this_machine
from temper.orchestrator.cluster.machines import Hardware, Machine
from temper.orchestrator.cluster.placement import build_request
from temper.orchestrator.config.run_config import ProfileName
from temper.orchestrator.config.text import get_value, overridden, read_text
from temper.orchestrator.pipeline.config import KINDS, Config, flat_config, load_config, make_config, save_config
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.pipeline.profiles.inputs import PROFILED, default_value, profile_name, with_profile_gpus
from temper.orchestrator.pipeline.profiles.resolve import choose_settings, profile_notes, resolve_profile, with_choices
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.registry import all_stages

DEMO = Path("configs/demo.yaml")
CPUS = Hardware(machines=(Machine(gpus=0, gpu_gib=0.0, memory_gib=24.0, cpus=2),))


NANO, QWEN, MOE, LLAMA_70B = (
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Llama-3.1-70B",
)
TINY = "a toy"
ENVS: dict[str, Any] = {"envs": {"math": {}}, "name": "probe"}


def gpus(count: int, gib: float, *, machines: int = 1) -> Hardware:
    one = Machine(gpus=count, gpu_gib=gib, memory_gib=1500.0, cpus=64)
    return Hardware(machines=(one,) * machines)


def chosen(
    hardware: Hardware,
    model: str,
    *overrides: str,
    name: ProfileName = "auto",
    refuse: bool = False,
    **given: object,
) -> Config:
    """The configuration that the profile of a hardware makes of a public model."""
    plain = overridden(ENVS | given, list(overrides))
    lora = int(get_value(plain, "learner.lora.rank") or 0)
    planned = public_model(QWEN if model == TINY else model, lora=lora)
    planned = replace(planned, parameters=700_000) if model == TINY else planned
    found = choose_settings(
        plain, name, hardware, size=lambda _: planned.parameters, count=lambda *_: (planned, 0), refuse=refuse
    )
    return make_config(with_choices(plain, found))


def test_a_gpu_is_left_for_each_model_that_judges(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    own, other = {"judge": {"model": str(tmp_path)}}, {"judge": {"model": "m", "url": "http://127.0.0.1:1/v1"}}
    for envs, left in (({"math": own, "code": own}, 1), ({"math": other}, 0)):
        config = chosen(gpus(8, 79.6), QWEN, envs=envs)
        assert config.learner.ranks + config.rollout.processes + config.resolved.idle_gpus == 8 - left
        assert build_request(config).judges == left


def test_eight_large_gpus_are_shared_between_a_learner_and_engines_in_bfloat16() -> None:
    config = chosen(gpus(8, 79.6), NANO)
    learner, engine = config.learner, config.rollout.engine
    assert (learner.ranks, config.rollout.workers, engine.tensor_parallel) == (4, 4, 1)
    assert (learner.bf16, learner.wire_dtype, engine.dtype) == (True, "bfloat16", "bfloat16")
    assert learner.zero_stage == 3  # 142 GB at 16 bytes a parameter and more: too large for one GPU
    assert learner.recompute == "full"  # without it, 16,384 tokens keep 70 GB of activations
    limits = config.rollout.limits
    assert (limits.turn_tokens, limits.total_tokens, engine.max_model_len) == (12288, 16384, 16384)
    assert config.sections["rl"].optim.learning_rate == 1e-6
    assert config.resolved.profile == config.profile == "gpu80"
    assert config.supervision.stalled_s > limits.timeout_s > 1000
    assert config.sections["rl"].timeout_s > config.supervision.stalled_s


def test_half_of_a_small_gpu_takes_adapters_with_their_learning_rate() -> None:
    config = chosen(gpus(1, 24.0), QWEN, "learner.lora={rank: 32, alpha: 64}")
    assert (config.learner.ranks, config.rollout.workers, config.learner.zero_stage) == (1, 1, 1)
    assert config.rollout.engine.gpu_memory_utilization == 0.45
    assert config.rollout.engine.max_sequences < 256
    assert config.sections["rl"].optim.learning_rate == 2e-5
    assert config.sections["sft"].optim.learning_rate == 2e-4
    whole = chosen(gpus(1, 24.0), QWEN)
    assert whole.learner.offload == "cpu"  # 31 GB of states
    assert whole.sections["rl"].optim.learning_rate == 2e-6


def test_a_model_too_large_for_one_gpu_has_engines_of_several() -> None:
    config = chosen(gpus(8, 24.0, machines=2), NANO)
    engine = config.rollout.engine
    assert engine.tensor_parallel == 2
    assert config.learner.ranks + config.rollout.workers * engine.tensor_parallel == 16
    three = chosen(gpus(3, 24.0, machines=3), LLAMA_70B)
    assert three.rollout.engine.tensor_parallel == 2  # no machine has four GPUs


@pytest.mark.parametrize(("gib", "stage"), [(80.0, 2), (141.0, 1)])
def test_shared_experts_have_the_lowest_stage_that_fits(gib: float, stage: int) -> None:
    """8 of 16 ranks share 29 of 31 billion parameters. At stage 1 a rank has 6 bytes of each of its own."""
    large = gpus(8, gib, machines=4)
    assert chosen(large, MOE, "learner.expert_parallel=8", refuse=True).learner.zero_stage == stage


EIGHT, SIX, LARGE = gpus(8, 80.0), gpus(6, 80.0), gpus(8, 80.0, machines=16)
COLOCATED = ("placement=colocated", "rl.max_lag=0", "distill.max_lag=0")


@pytest.mark.parametrize(
    ("hardware", "overrides", "shares"),
    [
        (EIGHT, ("stages=[init,sft]",), (8, 1, 0)),
        (EIGHT, ("stages=[init,eval]",), (1, 8, 0)),
        (EIGHT, ("stages=[init,sft]", "sft.batch_size=12"), (4, 1, 4)),  # 8 ranks can't share 12 sequences
        (EIGHT, ("stages=[init,{dpo: {data: pairs.jsonl}}]",), (8, 1, 0)),  # pairs of a file need no engines
        (EIGHT, ("stages=[init,dpo]", "dpo.data=pairs.jsonl"), (8, 1, 0)),
        (EIGHT, ("stages=[init,dpo]",), (4, 4, 0)),
        (LARGE, ("stages=[init,rl]",), (64, 64, 0)),
        (LARGE, ("stages=[init,dpo,rl]",), (32, 96, 0)),  # the default of `dpo.batch_size`
        (LARGE, ("stages=[init,{sft: {name: small, batch_size: 16}},rl]", "sft.batch_size=64"), (16, 112, 0)),
        (SIX, (), (2, 4, 0)),
        (SIX, ("stages=[init,sft]",), (4, 1, 2)),
        (SIX, COLOCATED, (4, 4, 2)),
        (gpus(4, 80.0), COLOCATED, (4, 4, 0)),
        (gpus(1, 80.0), (), (1, 1, 0)),
        (CPUS, (), (1, 1, 0)),
    ],
)
def test_gpus_are_shared_out_by_what_the_stages_do(
    hardware: Hardware, overrides: tuple[str, ...], shares: tuple[int, int, int]
) -> None:
    """Of the GPUs some have ranks, others engines, and some are idle."""
    config = chosen(hardware, QWEN, *overrides)
    assert (config.learner.ranks, config.rollout.workers, config.resolved.idle_gpus) == shares
    if hardware.gpus > 1:
        assert config.rollout.engine.gpu_memory_utilization == (0.85 if overrides == COLOCATED else 0.9)


def test_idle_gpus_are_named_with_the_settings_that_use_them() -> None:
    alone = chosen(SIX, QWEN, "stages=[init,sft]")
    assert profile_notes(alone, {"sft"})[-1] == "  idle GPUs: 2, with learner.ranks=4 and rollout.workers=1"


@pytest.mark.parametrize(
    ("hardware", "ranks", "threads", "beside"),
    [(gpus(8, 80.0), 4, 16, 8), (gpus(8, 80.0, machines=4), 16, 8, 4), (gpus(1, 80.0), 1, 16, 16)],
)
def test_ranks_on_gpus_share_the_cores_of_their_machine(
    hardware: Hardware, ranks: int, threads: int, beside: int
) -> None:
    """Of 64 cores, 4 ranks get 16 each, 8 ranks on a machine get 8 each. 16 is the maximum."""
    learner = chosen(hardware, NANO).learner
    assert (learner.ranks, learner.threads, learner.threads_during_generation) == (ranks, threads, beside)


@pytest.mark.parametrize(
    ("cores", "workers", "model", "threads"),
    [
        (2, 1, QWEN, (2, 2, 2)),
        (16, 1, QWEN, (16, 16, 16)),
        (16, 4, QWEN, (16, 16, 4)),
        (2, 1, TINY, (2, 1, 1)),
        (16, 6, TINY, (2, 2, 2)),
        (3, 1, TINY, (2, 1, 2)),
    ],
)
def test_ranks_and_engines_use_all_cores_and_share_those_of_a_toy_model(
    cores: int, workers: int, model: str, threads: tuple[int, int, int]
) -> None:
    hardware = Hardware(machines=(Machine(gpus=0, gpu_gib=0.0, memory_gib=64.0, cpus=cores),))
    config = chosen(hardware, model, f"rollout.workers={workers}")
    learner, engine = config.learner, config.rollout.engine
    assert (learner.threads, learner.threads_during_generation, engine.threads) == threads


def test_every_stage_that_learns_or_waits_for_answers_is_chosen_for() -> None:
    config = chosen(gpus(8, 80.0), NANO)
    for name in all_stages():
        keys = {key for key in KINDS if key in (f"{name}.optim.learning_rate", f"{name}.timeout_s")}
        assert keys <= set(config.resolved.settings)
        assert all(config.resolved.settings[key] != default_value(key) for key in keys - {"eval.timeout_s"}), name


OTHERS = {
    "rollout.engine.dtype": "auto",
    "rollout.engine.max_model_len": "20000",
    "rollout.engine.gpu_memory_utilization": "0.33",
    "rollout.limits.total_tokens": "9000",
    "rollout.limits.turn_tokens": "700",
    "rollout.engine.prefix_caching": "on",
    "learner.ranks": "2",
    "learner.expert_parallel": "1",
    "learner.bf16": "true",
    "learner.zero_stage": "2",
    "learner.offload": "cpu",
    "learner.recompute": "selective",
    "learner.wire_dtype": "float16",
}
"""Values that no profile chooses for one large GPU. Every other setting gets 3."""


def test_every_setting_that_a_profile_chooses_may_be_given_in_its_place() -> None:
    assert set(PROFILED) <= set(KINDS)
    given = {key: OTHERS.get(key, "3") for key in PROFILED}
    config = chosen(gpus(1, 80.0), NANO, *(f"{key}={text}" for key, text in given.items()))
    assert config.resolved.settings == {}
    flat = flat_config(config)
    assert {key: flat[key].lower().removesuffix(".0") for key in PROFILED} == given


def test_a_setting_may_be_that_of_another_section() -> None:
    given = ENVS | {"stages": ["init", "dpo"], "sft": {"steps": 7}, "dpo": {"steps": "${sft.steps}"}}
    given |= {
        "rollout": {"limits": {"total_tokens": 640}, "engine": {"max_model_len": "${rollout.limits.total_tokens}"}}
    }
    done = resolve_profile(given, ask=lambda: gpus(2, 79.6))
    assert done["dpo"]["steps"] == "${sft.steps}", "what is given stays as it is given"
    config = make_config(done)
    assert (config.sections["dpo"].steps, config.rollout.engine.max_model_len) == (7, 640)


def test_choices_follow_what_is_given() -> None:
    assert not chosen(gpus(8, 80.0), NANO, "learner.zero_stage=0").learner.bf16
    muon = chosen(gpus(8, 80.0), QWEN, stages=["init", {"sft": {"optim": {"kind": "muon"}}}])
    assert (muon.learner.zero_stage, muon.learner.bf16, muon.rollout.engine.dtype) == (1, True, "bfloat16")
    for decay, offload in ((0.0, "none"), (0.99, "cpu")):  # 18 or 22 bytes of each parameter
        stages = ["init", {"sft": {"optim": {"ema_decay": decay}}}]
        assert chosen(gpus(1, 38.0), QWEN, stages=stages).learner.offload == offload
    short = chosen(gpus(8, 80.0), NANO, "rollout.limits.total_tokens=2048")
    assert (short.rollout.limits.turn_tokens, short.rollout.engine.max_model_len) == (1536, 2048)
    assert short.learner.recompute == "none"
    with refuses("rollout.limits.total_tokens"):
        chosen(gpus(8, 80.0), NANO, "rollout.limits.total_tokens=many")


def test_two_cpu_cores_run_the_demo_with_the_settings_that_it_was_made_with() -> None:
    config = make_config(resolve_profile(read_text(DEMO, ["name=nobody-has-run-this"]), ask=lambda: CPUS))
    usual = load_config(DEMO, ["name=nobody-has-run-this"])
    changed = {key: value for key, value in config.resolved.settings.items() if value != default_value(key)}
    assert changed == {
        "learner.threads": 2,
        "learner.micro_batch_tokens": 2048,
        "rollout.engine.max_model_len": 512,
    }
    learner = replace(usual.learner, threads=2, micro_batch_tokens=2048)
    assert config.learner == learner
    assert profile_notes(config, {"sft", "rl"}) == [
        "profile cpu (2 CPU cores and 24 GiB of memory) sets",
        "  rollout.engine: max_model_len=512",
        "  learner: micro_batch_tokens=2048 threads=2",
    ]


def begun_run(root: Path, hardware: Hardware) -> list[str]:
    """Record a run that trained on this hardware. Return the overrides that resume it."""
    overrides = ["name=mine", f"runs_dir={root}"]
    folder = RunDir(root / "mine")
    folder.open()
    check_continuation(make_config(resolve_profile(read_text(DEMO, overrides), ask=lambda: hardware)), folder)
    with_checkpoint(folder, "rl")
    folder.close()
    return overrides


def nobody() -> Hardware:
    raise AssertionError("the cluster was asked")


def test_a_run_that_has_trained_goes_on_with_what_was_chosen_then(tmp_path: Path) -> None:
    overrides = begun_run(tmp_path, gpus(1, 24.0))
    config = make_config(resolve_profile(read_text(DEMO, overrides), ask=nobody))
    assert (config.profile, config.resolved.hardware) == ("gpu24", "1 GPU of 24 GiB")
    assert config.rollout.engine.gpu_memory_utilization == 0.45
    saved = make_config(resolve_profile(read_text(tmp_path / "mine" / "config.yaml", []), ask=nobody))
    assert saved == config
    other = make_config(resolve_profile(read_text(DEMO, [*overrides, "profile=cpu"]), ask=lambda: CPUS))
    assert (other.profile, other.rollout.engine.gpu_memory_utilization) == ("cpu", 0.5)
    given = make_config(
        resolve_profile(read_text(DEMO, [*overrides, "rollout.engine.gpu_memory_utilization=0.3"]), ask=nobody)
    )
    assert given.rollout.engine.gpu_memory_utilization == 0.3
    assert "rollout.engine.gpu_memory_utilization" not in given.resolved.settings


def test_a_fork_has_what_was_chosen_unless_it_names_another_profile(tmp_path: Path) -> None:
    begun_run(tmp_path, CPUS)
    file = tmp_path / "mine" / "config.yaml"
    same = make_config(resolve_profile(read_text(file, ["name=other"]), ask=nobody))
    assert (same.profile, same.learner.threads) == ("cpu", 2)
    moved = make_config(resolve_profile(read_text(file, ["name=other", "profile=gpu48"]), ask=lambda: CPUS))
    assert (moved.profile, moved.rollout.engine.batched_tokens) == ("gpu48", 8192)
    assert moved.rollout.limits == replace(same.rollout.limits, timeout_s=300.0)  # the demo sets the other limits
    kept = make_config(resolve_profile(read_text(file, ["name=other", "learner.threads=1"]), ask=nobody))
    assert kept.learner.threads == 1


def test_what_was_chosen_for_another_placement_is_chosen_anew(tmp_path: Path) -> None:
    overrides = begun_run(tmp_path, gpus(4, 80.0))
    moved = ["placement=colocated", "rl.max_lag=0", "distill.max_lag=0"]
    for file, words in ((DEMO, overrides), (tmp_path / "mine" / "config.yaml", ["name=other"])):
        kept = make_config(resolve_profile(read_text(file, words), ask=nobody))
        assert (kept.learner.ranks, kept.resolved.placement) == (2, "dedicated")
        shared = make_config(resolve_profile(read_text(file, [*words, *moved]), ask=lambda: gpus(4, 80.0)))
        assert (shared.learner.ranks, shared.rollout.workers, shared.resolved.placement) == (4, 4, "colocated")


def test_a_run_that_has_trained_nothing_is_chosen_for_anew(tmp_path: Path) -> None:
    overrides = ["name=mine", f"runs_dir={tmp_path}"]
    folder = RunDir(tmp_path / "mine")
    folder.open()
    save_config(make_config(resolve_profile(read_text(DEMO, overrides), ask=lambda: CPUS)), folder.config)
    folder.close()
    assert resolve_profile(read_text(DEMO, overrides), ask=lambda: gpus(1, 80.0))["profile"] == "gpu80"


def test_a_profile_that_is_none_is_refused_with_those_that_there_are() -> None:
    with refuses("profile=gpu81"):
        resolve_profile(read_text(DEMO, ["profile=gpu81"]), ask=lambda: CPUS)


def test_records_are_no_change_of_a_run() -> None:
    assert kind_of(KINDS, "profile") is kind_of(KINDS, "resolved.settings.learner.bf16") is Kind.FREE


def test_gpus_are_named_by_the_memory_that_they_are_sold_with() -> None:
    sizes = {23028: "gpu24", 40960: "gpu40", 46068: "gpu48", 81559: "gpu80", 143771: "gpu141", 183359: "gpu180"}
    assert {mib: profile_name(gpus(1, mib / 1024)) for mib in sizes} == sizes
    assert (profile_name(gpus(1, 8.0)), profile_name(CPUS)) == ("gpu16", "cpu")
    assert with_profile_gpus(CPUS, "gpu80").gpus == 1
    assert with_profile_gpus(gpus(8, 24.0), "gpu80").gpu_gib == 80.0
    assert with_profile_gpus(gpus(8, 24.0), "cpu").gpus == 0


def test_what_nvidia_smi_says_counts_where_the_process_may_use_it() -> None:
    told = "81559\n81559\n24564\n"
    assert parse_gpu_sizes(told, None) == [81559 / 1024, 81559 / 1024, 24564 / 1024]
    assert parse_gpu_sizes(told, "2") == [24564 / 1024]
    assert parse_gpu_sizes(told, "GPU-8932f937,GPU-1") == [81559 / 1024] * 2
    assert parse_gpu_sizes(told, "") == parse_gpu_sizes(told, "-1") == []
    assert len(query_torch()) == torch.cuda.device_count()  # without nvidia-smi
    machine = Machine(gpus=1, gpu_gib=80.0, memory_gib=100.0, cpus=4)
    assert limit_gpus(machine, 8).gpus == 8  # as many as Ray may use
    assert limit_gpus(replace(machine, gpu_gib=0.0), 8).gpus == 0  # a CPU build of torch can't use them
    assert this_machine().cpus >= 1
    assert this_machine().memory_gib > 0.1


def test_a_model_s_shape_is_read_from_its_configuration(tmp_path: Path) -> None:
    fresh = FreshModelConfig()
    hybrid = read_shape(hybrid_config(fresh, byte_tokenizer()), parameters=fresh.parameters)
    assert (hybrid.hidden, hybrid.positions, hybrid.vocabulary) == (128, 2048, VOCABULARY)
    assert make_model(tmp_path / "fresh", fresh, seed=1) == fresh.parameters
    other = FreshModelConfig(
        pattern="MEM*-", hidden_size=64, mamba_heads=6, state_size=16, key_value_heads=1, experts=5, expert_size=24
    )
    assert make_model(tmp_path / "other", other, seed=1) == other.parameters


def test_nothing_is_given_over_a_section_that_is_that_of_another_key() -> None:
    given = {"rollout": {"engine": {"dtype": "float32"}}, "eval": {"engine": "${rollout.engine}"}}
    with pytest.raises(ValueError, match=r"eval.engine=\$\{rollout.engine\}"):
        overridden(given, ["eval.engine.dtype=bfloat16"])
