"""`temper plan`: counts against real classes and published figures, and limits whose remedies mend them."""

import json
import math
from pathlib import Path

import pytest
import torch
from support.public_models import NANO_9B, NANO_30B, PUBLIC, qwen3
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from temper.learner.config import LearnerConfig, LoraConfig
from temper.learner.engine.optimizer import freeze
from temper.learner.models import mamba_scan
from temper.learner.models.adapters import add_adapters
from temper.learner.models.fresh import FreshModelConfig, byte_tokenizer, hybrid_config, make_model
from temper.learner.models.loading import read_model
from temper.learner.saving import HEADERS_BYTES, checkpoint_bytes
from temper.orchestrator.__main__ import main
from temper.orchestrator.cluster.hardware import Hardware, Machine
from temper.orchestrator.pipeline.config import save_config, settled_config
from temper.orchestrator.pipeline.limit_checks import hang_notes
from temper.orchestrator.pipeline.start_checks import checkpoint_size
from temper.orchestrator.tools.preflight.doctor.finding import Level
from temper.orchestrator.tools.preflight.doctor.memory import check_shm
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Site, named_site
from temper.orchestrator.tools.preflight.plan.memory.layers import layers_of
from temper.orchestrator.tools.preflight.plan.model import counted, read_config
from temper.orchestrator.tools.preflight.plan.page import page
from temper.orchestrator.tools.preflight.plan.plan import Plan, make_plan, plan_of, planned_config
from temper.orchestrator.tools.preflight.plan.planner import Planner

EIGHT = Path("configs/recipes/eight_gpus.yaml")
BF16 = LearnerConfig(zero_stage=1, bf16=True)


def write_config(folder: Path, config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"model.path={write_config(tmp_path_factory.mktemp('models') / 'nano', NANO_9B)}"


def plan(*overrides: str, gpus: str, path: Path = EIGHT) -> Plan:
    return plan_of(path, overrides, gpus=gpus, assumptions=Assumptions())


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_and_bytes_are_those_that_the_publishers_count(name: str, tmp_path: Path) -> None:
    config, published = PUBLIC[name]
    model = counted(read_config(write_config(tmp_path / "model", config)), BF16, name=name)
    assert model.parameters == model.trained == published
    assert sum(model.parts.values()) == published
    assert (
        model.push_bytes["bfloat16"] - 64 == 2 * published
    )  # every tensor is a multiple of 64 bytes, and there is a footer
    biases = 23 * 128 * 4 if config is NANO_30B else 0  # of its routers: the published size of the files has them too
    assert model.saved_bytes == 2 * published + biases


def test_a_checkpoint_of_the_demo_is_as_large_as_its_files(tmp_path: Path) -> None:
    fresh = FreshModelConfig()
    make_model(tmp_path, fresh, seed=1)
    learner = LearnerConfig(lora=LoraConfig(rank=4))
    model = counted(read_config(tmp_path), learner, name="fresh")
    whole = read_model(tmp_path, device="cpu")
    assert model.parameters == sum(p.numel() for p in whole.parameters())
    assert 0 <= (tmp_path / "model.safetensors").stat().st_size - model.saved_bytes < 10_000  # the head of the file
    matrices = [p.shape for name, p in whole.named_parameters() if p.ndim == 2 and "out_proj" not in name]
    inside = matrices[1:-1]  # between the embedding and the output layer
    assert model.trained == sum(4 * (rows + columns) for rows, columns in inside)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("part", ["all", "frozen", "adapters"])
def test_start_plan_and_learner_agree_on_the_bytes_of_a_checkpoint(part: str, bf16: bool, tmp_path: Path) -> None:
    make_model(tmp_path, FreshModelConfig(), seed=1)
    frozen, lora = ["embed"] if part == "frozen" else [], LoraConfig(rank=4 if part == "adapters" else 0)
    learner = LearnerConfig(zero_stage=1, bf16=bf16, frozen=frozen, lora=lora)
    whole = read_model(tmp_path, device="cpu")
    parameters = sum(p.numel() for p in whole.parameters())
    freeze(whole, learner.frozen)
    if lora.rank:
        add_adapters(whole, rank=lora.rank, alpha=lora.alpha)
    needed = checkpoint_bytes(whole, bf16=bf16) - HEADERS_BYTES
    planned = counted(read_config(tmp_path), learner, name="fresh")
    assert planned.checkpoint_bytes == needed
    assert checkpoint_size(learner, parameters) == (needed if part == "all" else planned.saved_bytes)


def kept_by_autograd(config: PretrainedConfig, dtype: torch.dtype, tokens: int) -> float:
    """Bytes that one token leaves for the backward pass, counted by the memory of what autograd saves."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, config.vocab_size, (1, tokens))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _ = model.base_model(input_ids=ids, use_cache=False)[0]
    return sum(storage.nbytes() for storage in saved.values()) / tokens


SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(intermediate_size=768, head_dim=32, **SHAPE),
        LlamaConfig(intermediate_size=768, **SHAPE),
        Qwen3MoeConfig(moe_intermediate_size=96, num_experts=16, num_experts_per_tok=4, head_dim=32, **SHAPE),
        hybrid_config(FreshModelConfig(), byte_tokenizer()),
        hybrid_config(FreshModelConfig(pattern="ME*E"), byte_tokenizer()),
    ],
    ids=["qwen3", "llama", "qwen3_moe", "demo", "experts"],
)
def test_activations_are_what_autograd_keeps(config: PretrainedConfig, dtype: torch.dtype) -> None:
    mamba_scan.install(device="cpu")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = layers_of(model, config)
    planned = sum(layer.kept_bytes(width=dtype.itemsize, gpu=False) for layer in layers)
    assert planned == pytest.approx(kept_by_autograd(config, dtype, 256), rel=0.15)


def test_the_host_of_a_hybrid_is_planned_by_part(nano: str) -> None:
    found = plan(nano, gpus="8xH100-80G")
    rank, engine, count = found.rank, found.engine, 8_888_227_328
    assert rank is not None
    assert engine is not None
    assert (found.ranks, found.engines, found.gpus) == (4, 4, 8)
    assert (rank.weights, rank.gradients, rank.optimiser) == (2 * count // 4, 4 * count // 4, 12 * count // 4)
    assert engine.weights == 2 * count
    assert engine.token_bytes == 4 * 2 * 8 * 128 * 2  # four layers with keys and values of eight heads
    assert engine.state_bytes == 27 * (128 * 80 * 128 * 4 + (10240 + 2 * 8 * 128) * 3 * 2)
    assert found.push.transport == "broadcast"
    assert found.push.nbytes == 2 * count + 64
    assert all(limit.holds for limit in found.limits)
    assert rank.peak < found.rank_room


def test_a_rank_that_does_not_fit_is_mended_by_what_is_said(nano: str) -> None:
    greedy = ("learner.zero_stage=1", "learner.recompute=none", "learner.shared_prompts=true")
    (failed,) = [limit for limit in plan(nano, *greedy, gpus="8xH100-80G").limits if not limit.holds]
    assert failed.what == "a rank's memory"
    mended = plan(nano, *greedy, *failed.remedy.split(), gpus="8xH100-80G")
    assert all(limit.holds for limit in mended.limits)


def failing(*overrides: str, gpus: str) -> dict[str, str]:
    """What mends each limit that is hit."""
    return {one.what: one.remedy for one in plan(*overrides, gpus=gpus).limits if not one.holds}


def test_an_engine_too_small_for_its_weights_is_mended_by_more_gpus(tmp_path: Path) -> None:
    large = f"model.path={write_config(tmp_path / 'large', qwen3(5120, 17408, 40, 40, tied=False))}"
    narrow = (large, "rollout.engine.tensor_parallel=1", "rollout.workers=4")
    failed = failing(*narrow, gpus="8xRTX4090-24G")
    (remedy,) = [remedy for what, remedy in failed.items() if what.startswith("an engine's cache")]
    assert remedy == "rollout.engine.tensor_parallel=2 rollout.workers=2"  # 4 GPUs are left by the ranks
    left = failing(*narrow, *remedy.split(), gpus="8xRTX4090-24G")
    assert not any(what == "GPUs" or what.startswith("an engine's cache") for what in left)


def test_an_engine_without_room_for_a_sequence_is_mended_by_shorter_ones_or_gpus_of_a_size(tmp_path: Path) -> None:
    model = f"model.path={write_config(tmp_path / 'model', PUBLIC['Qwen/Qwen3-8B'][0])}"
    alone = ("rollout.engine.gpu_memory_utilization=0.9", "rollout.workers=1", "learner.ranks=1")
    long = (model, *alone, "rollout.limits.total_tokens=40960", "rollout.engine.max_model_len=40960")
    site = "2xRTX4090-24G"
    (remedy,) = [text for what, text in failing(*long, gpus=site).items() if what.startswith("an engine's cache")]
    shorter = plan(*long, *remedy.split(), gpus=site)
    assert shorter.engine is not None
    assert (shorter.engine.sequences(shorter.longest), shorter.engine.sequences(shorter.longest + 1000)) == (1, 0)
    heavy = (*long, "rollout.limits.turn_tokens=40000")  # no turn would fit into what is left
    (remedy,) = [text for what, text in failing(*heavy, gpus=site).items() if what.startswith("an engine's cache")]
    gib = float(remedy.removeprefix("GPUs of ").removesuffix(" GiB"))
    assert shorter.engine.allowed < 0.9 * gib * 2**30 < 1.2 * shorter.engine.allowed


def test_a_push_without_room_in_the_object_store_is_said_with_what_helps(nano: str) -> None:
    (failed,) = [
        one for one in plan(nano, "learner.transport=shared_memory", gpus="2x4xH100-80G").limits if not one.holds
    ]
    assert "do not fit into Ray's object store of 67,108,864 bytes" in failed.needed
    setting, _, hardware = failed.remedy.partition(", or ")
    assert hardware == "ray start --object-store-memory=17776454720 on machines with 17 GiB of /dev/shm"
    assert not failing(nano, setting, gpus="2x4xH100-80G")
    roomy = Assumptions().given(["shm_gib=64"])
    found = plan_of(EIGHT, [nano, "learner.transport=shared_memory"], gpus="2x4xH100-80G", assumptions=roomy)
    assert all(limit.holds for limit in found.limits)


def test_seconds_are_those_of_a_roofline_worked_out_by_hand(tmp_path: Path) -> None:
    model = f"model.path={write_config(tmp_path / 'model', PUBLIC['Qwen/Qwen3-8B'][0])}"
    given = (model, "learner.ranks=1", "learner.zero_stage=1", "learner.recompute=full", "learner.shared_prompts=false")
    sizes = (
        "learner.offload=none",
        "rl.groups_per_step=32",
        "rl.group_size=16",
        "rollout.engine.max_sequences=64",
        "learner.bf16=true",
    )
    assumed = Assumptions().given(["answer_tokens=2000", "prompt_tokens=400", "pass_ms=0"])
    found = plan_of(EIGHT, [*given, *sizes], gpus="8xH100-80G", assumptions=assumed, price=2.0)
    time, count = found.time, 8_190_735_360
    assert time is not None
    kept = 36 * 2 * 8 * 128 * 2 * (400 + 1000)  # bytes of a sequence that is half done
    each = (2 * count + 64 * kept) / (0.7 * 3350e9)
    assert time.rates.token_s == pytest.approx(each, rel=1e-6)
    prompts = (
        512 * (400 + 15 * 16) / 16 * 2 * count / (0.5 * 989.4e12)
    )  # cached for 15 of 16: 384 tokens, in units of 16
    assert time.generate_s == pytest.approx((512 * 2000 / 64 * each + prompts) / found.engines, rel=0.01)
    products = (
        512 * 2400 * 8 * count / (0.3 * 989.4e12)
    )  # 6 operations a parameter and token, and 2 to compute layers again
    assert time.learn_s == pytest.approx(products, rel=0.1)  # the embedding is not multiplied, attention's scores are
    assert time.step_s == max(time.generate_s + time.load_s, time.learn_s + time.publish_s)
    assert time.hours == 300 * time.step_s / 3600
    assert found.cost == pytest.approx(time.hours * found.gpus * 2.0)


def test_a_better_split_of_the_gpus_is_what_it_is_said_to_be(nano: str) -> None:
    passes = ("learner.zero_stage=3", "learner.recompute=full", "learner.shared_prompts=false")
    fixed = (*passes, "learner.micro_batch_tokens=16384", "rollout.engine.max_sequences=256")
    slow = plan(nano, *fixed, "learner.ranks=2", "rollout.workers=6", gpus="8xH200-141G")
    better = slow.split
    assert better is not None
    assert slow.time is not None
    faster = plan(
        nano, *fixed, f"learner.ranks={better.ranks}", f"rollout.workers={better.engines}", gpus="8xH200-141G"
    )
    assert faster.time is not None
    assert faster.time.step_s == pytest.approx(better.step_s)
    assert faster.time.step_s == pytest.approx((1 - better.gain) * slow.time.step_s)
    assert better.gain > 0.1
    assert faster.split is None


def test_a_deadline_too_short_for_a_step_is_said_with_what_is_long_enough(nano: str) -> None:
    failed = [one for one in plan(nano, "rl.timeout_s=100", gpus="8xH100-80G").limits if not one.holds]
    assert [one.what for one in failed] == ["rl.timeout_s, 1.5 times the wait"]
    assert all(one.holds for one in plan(nano, failed[0].remedy, gpus="8xH100-80G").limits)


@pytest.mark.parametrize("above", [(), ("supervision.stalled_s=30", "rl.timeout_s=45")])
def test_a_deadline_of_episodes_too_short_for_an_answer_is_mended_with_those_above_it(
    nano: str, above: tuple[str, ...]
) -> None:
    short = (nano, "rollout.limits.timeout_s=20", *above)
    found = plan(*short, gpus="8xH100-80G")
    time, failed = found.time, {one.what: one.remedy for one in found.limits if not one.holds}
    assert time is not None
    assert time.longest_s > 300
    what = "rollout.limits.timeout_s, 1.5 times the wait"
    assert failed[what].split()[0] == f"rollout.limits.timeout_s={math.ceil(1.5 * time.longest_s)}"
    mended = (*short, *" ".join(failed.values()).split())
    site = named_site("8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    config, model = planned_config(EIGHT, mended, site)
    assert hang_notes(config, config.instances) == []
    limits = make_plan(Planner(config, model, site, Assumptions())).limits
    assert all(one.holds for one in limits)
    assert [one.needed for one in limits if one.what == what] == [f"{1.5 * time.longest_s:,.1f} s"]


def on_this(memory_gib: float, *overrides: str, gpu_gib: float = 0.0) -> Plan:
    """The plan of the demo on two cores with so much main memory, and two GPUs of so much memory if any."""
    machine = Machine(gpus=2 if gpu_gib else 0, gpu_gib=gpu_gib, memory_gib=memory_gib, cpus=2)
    site = Site(hardware=Hardware(machines=(machine,)), card=None, shm_bytes=2**34, named=False)
    config, model = planned_config(Path("configs/demo.yaml"), overrides, site)
    return make_plan(Planner(config, model, site, Assumptions()))


@pytest.mark.parametrize(
    ("memory_gib", "given", "remedy"),
    [
        (23.5, ("rollout.engine.memory_gib=100",), "rollout.engine.memory_gib=23"),
        (3.5, ("rollout.engine.memory_gib=1", "rollout.workers=4"), "rollout.workers=3"),
        (1.3, ("rollout.workers=1", "learner.ranks=16", "rollout.engine.memory_gib=1"), "learner.ranks=2"),
        (2.0, ("rollout.engine.memory_gib=8", "rollout.workers=4"), "rollout.engine.memory_gib=1 rollout.workers=1"),
        (0.5, (), "machines with 2 GiB of main memory"),
    ],
)
def test_main_memory_is_mended_by_the_setting_that_fits(memory_gib: float, given: tuple[str, ...], remedy: str) -> None:
    found = on_this(memory_gib, *given)
    (failed,) = [one for one in found.limits if not one.holds]
    assert failed.what == "main memory of a machine"
    assert failed.remedy == remedy
    mended = on_this(2, *given) if remedy.startswith("machines") else on_this(memory_gib, *given, *remedy.split())
    assert all(one.holds for one in mended.limits)


def test_ranks_that_read_the_model_are_so_many_fewer_that_they_share_every_batch(nano: str) -> None:
    few = Assumptions().given(["host_gib_per_gpu=15"])  # 120 GiB, and each of 4 ranks reads 33.1
    given = [nano, "stages=[sft,rl]", "sft.steps=10", "sft.batch_size=32"]
    found = plan_of(EIGHT, given, gpus="8xH200-141G", assumptions=few)
    (failed,) = [one for one in found.limits if not one.holds]
    assert failed.remedy == "learner.ranks=2"  # 3 can't share 32
    (alone,) = [one for one in plan_of(EIGHT, [nano], gpus="8xH200-141G", assumptions=few).limits if not one.holds]
    assert alone.remedy == "learner.ranks=3"  # no stage of this run has a batch to share
    mended = plan_of(EIGHT, [*given, failed.remedy], gpus="8xH200-141G", assumptions=few)
    assert all(one.holds for one in mended.limits)


def test_too_few_gpus_are_mended_by_numbers(nano: str) -> None:
    failed = failing(nano, "learner.ranks=4", "rollout.workers=7", gpus="8xH100-80G")
    assert failed == {"GPUs": "rollout.workers=4"}
    wide = (nano, "learner.ranks=4", "rollout.workers=1", "rollout.engine.tensor_parallel=8")
    failed = failing(*wide, gpus="8xH100-80G")
    assert failed == {"GPUs": "rollout.engine.tensor_parallel=4"}
    assert not failing(*wide, failed["GPUs"], gpus="8xH100-80G")


def test_a_rank_too_large_for_all_settings_is_told_the_gpus_that_would_hold_it() -> None:
    def remedies(gib: float, *settings: str) -> list[str]:
        found = on_this(64.0, "learner.ranks=1", "rollout.workers=1", "profile=cpu", *settings, gpu_gib=gib)
        return [one.remedy for one in found.limits if one.what == "a rank's memory" and not one.holds]

    (remedy,) = remedies(2.5)  # where what CUDA takes has no room
    size, _, settings = remedy.removeprefix("GPUs of ").partition(" GiB")
    gib, settings = int(size), settings.removeprefix(" with ")
    assert remedies(gib, *settings.split()) == []
    assert len(remedies(gib - 1, *settings.split())) == 1


def test_little_of_dev_shm_is_advised_against_as_the_doctor_does_and_fails_no_plan(nano: str) -> None:
    found = plan(nano, gpus="8xH100-80G")
    (small,) = found.advised
    assert (small.has, small.holds) == ("64.0 MiB", False)
    assert small.remedy == check_shm(2**26).remedy
    assert page(found)[-1] == "no limit would be hit"
    assert f"warn  {small.what}: 1.0 GiB of 64.0 MiB: {small.remedy}" in page(found)
    assert check_shm(2**30).level is Level.OK


def test_the_copy_of_a_checkpoint_is_told_and_what_happens_without_room_for_it(nano: str) -> None:
    roomy, full = (
        plan_of(EIGHT, [nano, "learner.offload=cpu"], gpus="8xH100-80G", assumptions=Assumptions().given([given]))
        for given in ("host_gib_per_gpu=128", "host_gib_per_gpu=28")
    )
    copy = f"while a checkpoint is written, of which its copy has {roomy.model.checkpoint_bytes / 2**30:,.1f} GiB"
    (told,) = [line for line in page(roomy) if copy in line]
    assert "no room" not in told
    (told,) = [line for line in page(full) if copy in line]
    assert told.endswith("there is no room for it, so the loop waits while it is written")
    assert all(one.holds for one in full.limits)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [("8xH101", "H101 is not known here"), ("H100-80G", "say how many"), ("0xH100-80G", "there are none of it")],
)
def test_hardware_that_is_none_is_refused_with_what_there_is(gpus: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        named_site(gpus, host_gib_per_gpu=1.0, shm_gib=1.0)


def test_an_assumption_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is called speed; there are answer_share"):
        Assumptions().given(["speed=2"])
    with pytest.raises(ValueError, match="give a number, such as disk_gbs=1"):
        Assumptions().given(["disk_gbs=fast"])
    for pair in ("disk_gbs=0", "disk_gbs=nan", "disk_gbs=inf", "disk_gbs=-1"):
        with pytest.raises(ValueError, match=f"--assume {pair}: must be a number above 0"):
            Assumptions().given([pair])
    assert Assumptions().given(["pass_ms=0"]).pass_ms == 0


def test_a_model_of_no_known_class_is_refused_and_its_code_is_not_run(tmp_path: Path) -> None:
    strange = {"model_type": "strange", "auto_map": {"AutoConfig": "configuration_strange.StrangeConfig"}}
    with pytest.raises(ValueError, match="no class for, and code that a model brings is not run"):
        read_config(write_config(tmp_path / "model", strange))


def test_the_command_prints_a_page_or_json_and_fails_where_a_limit_would_be_hit(
    nano: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["plan", str(EIGHT), nano, "--gpus", "8xH100-80G"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "8,888,227,328 parameters" in said
    assert "no limit would be hit" in said
    assert main([*given, "--json", "rollout.engine.gpu_memory_utilization=0.2"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["parameters"] == 8_888_227_328
    rank, time = found["rank"], found["time"]
    parts = ("weights", "gradients", "optimiser", "buckets", "gathered", "reference", "activations", "logits", "push")
    assert rank["peak"] == sum(rank[part] for part in (*parts, "overhead"))
    assert time is None  # the engine does not fit
    assert min(found["engine"]["peak"], found["host"]["peak"], found["model"]["checkpoint_bytes"]) > 0
    assert [one["remedy"] for one in found["limits"] if not one["holds"]] == [
        "rollout.engine.gpu_memory_utilization=0.9"
    ]


def step_row(step: int, seconds: float) -> dict[str, object]:
    """What a step of the demo measures that trains on 160 answers of 20 tokens to prompts of 60, and samples a quarter more."""
    trained = {"train/tokens_per_s": 6400.0, "train/step_seconds": 2.0, "rollout/answers": 160.0}
    sampled = {"rollout/tokens_per_s": 3200.0 / seconds, "engine/sampled_tokens": 4000.0}
    times = {"time/step_s": seconds, "time/learn_s": 2.0, "time/wait_s": 0.0, "push/bytes": 2728896.0}
    return {"stage": "rl", "step": step, "time": 1.0 + step, **trained, **sampled, **times}


def test_a_run_is_set_beside_its_plan_for_the_lengths_that_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    save_config(settled_config(Path("configs/demo.yaml"), ["profile=cpu"]), run / "config.yaml")
    rows = [step_row(1, 9.0), step_row(2, 2.0), step_row(3, 3.0)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rates = ["--assume", "sampled_per_s=2000", "--assume", "trained_per_s=8000"]
    assert main(["plan", "--compare", str(run), *rates, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 2  # the first fills the engines
    work = found["work"]
    assert (work["answer_tokens"], work["prompt_tokens"], work["kept"]) == pytest.approx((20.0, 60.0, 0.8), rel=0.03)
    figures = {one["name"]: one for one in found["figures"]}
    assert figures["bytes of a push"]["error"] == 0
    learning = figures["seconds of learning"]
    assert (learning["predicted"], learning["measured"]) == pytest.approx((12800 / 8000, 2.0), rel=0.03)
    assert learning["error"] == pytest.approx(-0.2, abs=0.03)
    step = figures["seconds of a step"]
    assert (step["predicted"], step["measured"]) == pytest.approx((4000 / 2000, 2.5), rel=0.05)


def test_a_plan_is_of_a_file_or_beside_a_run_and_no_other_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan"]) == 2
    assert "give FILE to plan a run of it, or --compare RUN" in capsys.readouterr().err
    assert main(["plan", "--compare", str(tmp_path)]) == 2
    assert "is no run's folder: it has no config.yaml" in capsys.readouterr().err
    assert main(["plan", str(EIGHT), "--gpus", "8xH100-80G", "--probe"]) == 2
    assert "--probe measures this machine, not --gpus 8xH100-80G" in capsys.readouterr().err


def test_the_plan_in_the_documents_is_what_the_command_prints(nano: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(EIGHT), nano, "--gpus", "8xH100-80G", "--price", "2.5"]) == 0
    said = capsys.readouterr().out.replace(nano.removeprefix("model.path="), "nvidia/NVIDIA-Nemotron-Nano-9B-v2")
    assert said in Path("docs/planning.md").read_text(encoding="utf-8")
