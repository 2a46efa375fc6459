"""The learner on real DeepSpeed with a tiny Nemotron-H. Each scenario runs once, in separate processes."""

import gc
import math
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.plain_rank import rank_logprobs
from support.pushes import received
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from temper.envs.core.process import MemoryUsage
from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig, ZeroStage
from temper.learner.losses.config import LossConfig
from temper.learner.models.logprobs import token_logprobs
from temper.learner.worker import TrainerWorker
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.weights.manifest import NoLongerHeld

OPTIM = OptimConfig(learning_rate=2e-3, warmup_steps=2, schedule="linear", weight_decay=0.01, grad_clip=0.5)
POLICY = LossConfig()
NLL = LossConfig(objective="nll")
STEPS = 4
LENGTHS = (40, 33, 32, 21, 17, 12, 9, 5)


def tiny_nemotron() -> PreTrainedModel:
    torch.manual_seed(0)
    return NemotronHForCausalLM(
        NemotronHConfig(
            vocab_size=264,
            hidden_size=64,
            layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"],
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            mamba_num_heads=4,
            mamba_head_dim=32,
            expand=2,
            n_groups=1,
            ssm_state_size=16,
            intermediate_size=128,
            chunk_size=8,
        )
    )


def tiny_transformer(config: type, model: type) -> PreTrainedModel:
    torch.manual_seed(0)
    shape = {"vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    tiny: PreTrainedModel = model(config(**shape, **heads, tie_word_embeddings=True))
    return tiny


def policy_sequences(*, seed: int) -> list[TrainingSample]:
    """Random sequences. Their second half has log-probabilities close to an untrained model's."""
    draw = torch.Generator().manual_seed(seed)
    sequences = []
    for length in LENGTHS:
        ids = torch.randint(0, 264, (length,), generator=draw).tolist()
        prompt = length // 2
        noise = torch.randn(length, generator=draw).tolist()
        sequences.append(
            TrainingSample(
                ids=as_ids(tuple(ids)),
                trained_T=as_marks(tuple(t >= prompt for t in range(length))),
                advantages_T=as_floats((noise[0],) * length),
                behaviour_T=as_floats(tuple(-5.6 + 0.3 * noise[t] if t >= prompt else math.nan for t in range(length))),
            )
        )
    return sequences


def batch(*, ranks: int, seed: int = 0, micro_batch_tokens: int = 70) -> TrainBatch:
    return build_batch(policy_sequences(seed=seed), ranks=ranks, micro_batch_tokens=micro_batch_tokens, pad_id=0)


def broken_batch(*, ranks: int) -> TrainBatch:
    """A batch whose shortest sequence, which one rank alone gets, has lost its log-probabilities."""
    *whole, last = policy_sequences(seed=9)
    lost = TrainingSample(
        ids=last.ids,
        trained_T=last.trained_T,
        advantages_T=last.advantages_T,
        behaviour_T=as_floats((math.nan,) * len(last.ids)),
    )
    return build_batch([*whole, lost], ranks=ranks, micro_batch_tokens=70, pad_id=0)


def infinite_batch() -> TrainBatch:
    """A batch whose loss is not finite either."""
    *whole, last = policy_sequences(seed=9)
    boundless = replace(last, advantages_T=as_floats((math.inf,) * len(last.ids)))
    return build_batch([*whole, boundless], ranks=1, micro_batch_tokens=70, pad_id=0)


def few_sequences() -> list[list[TrainingSample]]:
    """A batch of one sequence, which the ranks can't share, and one in which nothing is trained."""
    first = policy_sequences(seed=9)[0]
    return [[first], [TrainingSample.supervised(ids=first.ids, trained_T=[False] * len(first.ids))]]


def partly_zero(*, ranks: int, seed: int, zero: range, needs_all: bool) -> TrainBatch:
    """A batch in which the sequences `zero` have no advantage."""
    rows = [
        replace(row, place=n, advantages_T=as_floats((0.0,) * len(row.ids)) if n in zero else row.advantages_T)
        for n, row in enumerate(policy_sequences(seed=seed))
    ]
    return build_batch(rows, ranks=ranks, micro_batch_tokens=70, pad_id=0, aggregation="sequence", needs_all=needs_all)


def uncomputed(rank: int, port: int, folder: str, config: LearnerConfig) -> dict[str, Any]:
    """Steps in which half, all, almost all and none of the sequences have no advantage, with these computed and without."""
    learner = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    found: dict[str, Any] = {}
    optim = replace(OPTIM, eps=1e-4)  # with a small eps Adam would turn rounding of a gradient near 0 into a whole step
    for name, needs_all in (("computed", True), ("left out", False)):
        learner.load(f"{folder}/model", optim=optim, total_steps=STEPS)
        metrics, records = [], []
        for seed, zero in enumerate((range(4), range(8), range(1, 8), range(0))):
            batches = partly_zero(ranks=config.ranks, seed=seed, zero=zero, needs_all=needs_all)
            metrics.append(learner.train([batches.share(rank)], loss=POLICY))
            records.append(learner.token_records()[1])
        found[name] = {"metrics": metrics, "weights": weights_of(learner), "records": records, "steps": learner.steps}
    learner.close()
    return found


def tensor_bytes() -> int:
    """Memory of all tensors that are alive in this process."""
    gc.collect()
    storages = [item.untyped_storage() for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def bytes_left(*, seconds: float = 10.0) -> int:
    """`tensor_bytes` once little is left, or after that time: gloo's threads drop the tensors of a collective after it."""
    end = time.monotonic() + seconds
    while (left := tensor_bytes()) >= 1000 and time.monotonic() < end:
        time.sleep(0.05)
    return left


def held(descriptor: str) -> str:
    """The target of this process's descriptor, or nothing if it was just closed."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def weights_of(rank: TrainerWorker) -> dict[str, torch.Tensor] | None:
    manifest = rank.publish(1)
    return None if manifest is None else received(rank, manifest)


def engines_phase(rank: TrainerWorker, step: int) -> list[MemoryUsage]:
    """Push with only the weights on the device, then offload all, then reload all. Returns the memory usage in all four
    phases."""
    held = [rank.memory_usage()]
    rank.set_onloaded(weights=True, states=False)
    rank.publish(step)
    held.append(rank.memory_usage())
    rank.set_onloaded(weights=False, states=False)
    held.append(rank.memory_usage())
    with pytest.raises(AssertionError, match="offloaded"):
        rank.save("nowhere")
    rank.set_onloaded(weights=True, states=True)
    return [*held, rank.memory_usage()]


def in_processes(
    scenario: Callable[..., Any], *, ranks: int, arguments: tuple[Any, ...], seconds: float = 240.0
) -> list[Any]:
    """Run `scenario(rank, port, *arguments)` in one fresh process per rank and return the results.

    The processes are forked from one that has only imported the learner, because imports take most of a short scenario.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["temper.learner.worker"])
    with context.Pool(ranks) as pool:
        calls = [(rank, port, *arguments) for rank in range(ranks)]
        return pool.starmap_async(scenario, calls, chunksize=1).get(seconds)


def training(rank: int, port: int, folder: str, config: LearnerConfig) -> dict[str, Any]:
    """Policy steps with a broken batch among them, a checkpoint in mid-way, and the same steps again from it."""
    learner = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS)
    learner.train_step(batch(ranks=config.ranks).share(learner.rank), loss=POLICY)
    learner.close()
    left_bytes = bytes_left()

    learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS)
    checkpoint = f"{folder}/{config.ranks}-{config.zero_stage}-{config.bf16}"
    metrics = []
    for step in range(STEPS):
        if step == STEPS // 2:
            before = weights_of(learner)
            broken = learner.train_step(broken_batch(ranks=config.ranks).share(learner.rank), loss=POLICY)
            after = weights_of(learner)
            learner.save(checkpoint)
        metrics.append(learner.train_step(batch(ranks=config.ranks, seed=step).share(learner.rank), loss=POLICY))
    final = weights_of(learner)

    learner.load(checkpoint, optim=OPTIM, total_steps=STEPS)
    resumed_at = learner.restore(checkpoint)
    again = []
    for step in range(STEPS // 2, STEPS):
        again.append(learner.train_step(batch(ranks=config.ranks, seed=step).share(learner.rank), loss=POLICY))
        phase = engines_phase(learner, step)
    resumed = weights_of(learner)
    logprobs = rank_logprobs(learner, policy_sequences(seed=5))
    learner.save(f"{checkpoint}-final")
    lonely = [build_batch(rows, ranks=config.ranks, micro_batch_tokens=70, pad_id=0) for rows in few_sequences()]
    few = [learner.train_step(rows.share(learner.rank), loss=POLICY) for rows in lonely]
    learner.close()
    return {
        "few": few,
        "metrics": metrics,
        "before": before,
        "after": after,
        "broken": broken,
        "final": final,
        "left_bytes": left_bytes,
        "kept": gc.get_freeze_count(),
        "resumed_at": resumed_at,
        "again": again,
        "resumed": resumed,
        "logprobs": logprobs,
        "saved": f"{checkpoint}-final",
        "phase": phase,
        "segments": [name for file in os.listdir("/proc/self/fd") if "temper-weights" in (name := held(file))],
    }


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """One rank, ZeRO stage 0."""
    return in_processes(training, ranks=1, arguments=(str(folder), LearnerConfig()))[0]


@pytest.fixture(scope="module")
def shared(folder: Path) -> list[dict[str, Any]]:
    """Two ranks, ZeRO stage 3."""
    return in_processes(training, ranks=2, arguments=(str(folder), LearnerConfig(ranks=2, zero_stage=3)))


def test_zero_stage_3_on_two_ranks_equals_stage_0_on_one(alone, shared):
    assert shared[0]["metrics"] == shared[1]["metrics"]
    for one, two in zip(alone["metrics"], shared[0]["metrics"], strict=True):
        for name in ("loss", "grad_norm", "learning_rate", "entropy", "is_weight", "mismatch_abs"):
            assert two[name] == pytest.approx(one[name], abs=1e-4), name
    assert alone["metrics"][0]["loss"] != pytest.approx(alone["metrics"][-1]["loss"], abs=1e-3)
    for name, tensor in alone["final"].items():
        assert torch.allclose(shared[0]["final"][name], tensor, atol=1e-4), name


def test_a_broken_logprob_on_one_rank_skips_the_step(alone, shared):
    for result in (alone, *shared):
        assert result["broken"]["skipped"] == 1.0
        assert math.isnan(result["broken"]["loss"])
    for result in (alone, shared[0]):
        assert all(torch.equal(tensor, result["after"][name]) for name, tensor in result["before"].items())
    assert [m["skipped"] for m in alone["metrics"]] == [0.0] * STEPS


def test_a_lone_sequence_trains_alike_on_two_ranks(alone, shared):
    (one, nothing), *others = (result["few"] for result in (alone, *shared))
    for two, none in others:
        assert {name: two[name] for name in ("loss", "grad_norm")} == pytest.approx(
            {name: one[name] for name in ("loss", "grad_norm")}, abs=1e-4
        )
        assert (none, nothing) == ({"skipped": 1.0}, {"skipped": 1.0})


@pytest.mark.parametrize("config", [LearnerConfig(), LearnerConfig(ranks=2, zero_stage=3)], ids=["one", "two, stage 3"])
def test_sequences_without_an_advantage_need_no_pass(folder: Path, config: LearnerConfig) -> None:
    """Loss, gradient, optimiser steps and weights are as if they were computed, also if no sequence has an advantage."""
    results = in_processes(uncomputed, ranks=config.ranks, arguments=(str(folder), config))
    computed, left_out = results[0]["computed"], results[0]["left out"]
    exact = ("learning_rate", "skipped", "updates")
    for every, few in zip(computed["metrics"], left_out["metrics"], strict=True):
        assert {name: few[name] for name in exact} == {name: every[name] for name in exact}
        assert few["loss"] == pytest.approx(every["loss"], abs=1e-6)
        assert few["grad_norm"] == pytest.approx(every["grad_norm"], rel=1e-5, abs=1e-7)
        assert few["advantage_abs"] == pytest.approx(every["advantage_abs"], rel=1e-5, abs=1e-7)
        assert few["entropy"] == pytest.approx(every["entropy"], abs=0.3)  # of the engine for some tokens
    for name, tensor in computed["weights"].items():
        assert torch.allclose(left_out["weights"][name], tensor, atol=1e-6), name
    assert (computed["steps"], left_out["steps"]) == (STEPS, STEPS)
    assert "mismatch_abs" not in left_out["metrics"][1]
    surprises = [-row.behaviour_T[row.trained_T].astype(float).mean() for row in policy_sequences(seed=1)]
    assert left_out["metrics"][1]["entropy"] == pytest.approx(sum(surprises) / len(surprises), rel=1e-6)
    places = [sorted(record.place for result in results for record in result["left out"]["records"][1])]
    assert places == [list(range(8))]
    assert [record.as_json() for record in left_out["records"][1]] == [{"untrained": "zero_advantage"}] * 8


def test_a_restored_run_continues_bit_for_bit(alone, shared):
    for result in (alone, *shared):
        assert result["resumed_at"] == STEPS // 2
        assert [m["loss"] for m in result["again"]] == [m["loss"] for m in result["metrics"][STEPS // 2 :]]
    for result in (alone, shared[0]):
        assert all(torch.equal(tensor, result["resumed"][name]) for name, tensor in result["final"].items())


def test_a_learner_lets_go_of_its_device_and_goes_on_bit_for_bit(alone, shared):
    # That it goes on bit for bit says the test above, in whose second half it worked in phases. One rank on a CPU has its
    # weights in the memory of the file that they were read from, which stays.
    for result, stays in ((alone, True), *((two, False) for two in shared)):
        whole, pushing, nothing, again = ((one.weights, one.states) for one in result["phase"])
        assert whole[1] == again[1] > pushing[1] == 0
        assert 0 < again[0] <= whole[0]  # at stage 3 a step leaves some parameters gathered
        assert nothing == (whole[0] if stays else 0, 0)


def test_closing_frees_memory_and_imports_are_frozen(alone, shared):
    for result in (alone, *shared):
        assert result["left_bytes"] < 1000
        assert result["segments"] == []
        assert result["kept"] > 100_000  # torch and transformers make more


def test_a_saved_model_equals_the_pushed_one(alone, shared):
    for result in (alone, shared[0]):
        files = sorted(Path(result["saved"]).glob("model*.safetensors"))
        saved = {name: tensor for file in files for name, tensor in load_file(file).items()}
        assert set(saved) == set(result["resumed"])
        assert all(torch.equal(tensor, result["resumed"][name]) for name, tensor in saved.items())
        model = AutoModelForCausalLM.from_pretrained(result["saved"])
        for sequence, expected in zip(policy_sequences(seed=5), result["logprobs"], strict=True):
            ids_BT = torch.tensor([sequence.ids.tolist()])
            with torch.no_grad():
                found = token_logprobs(model(input_ids=ids_BT).logits, ids_BT)[0]
            assert found.tolist() == pytest.approx(expected, abs=1e-5)
        assert (Path(result["saved"]) / "tokenizer.json").is_file()


MANY = 64


def many_sequences() -> list[TrainingSample]:
    draw = torch.Generator().manual_seed(0)
    return [
        TrainingSample.supervised(
            ids=torch.randint(0, 264, (12,), generator=draw).tolist(), trained_T=[False, *[True] * 11]
        )
        for _ in range(MANY)
    ]


def summed_gradient(folder: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The gradient of that many micro-batches in bfloat16, each by torch alone, added up in a type."""
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/llama", dtype=torch.bfloat16)
    total = {name: torch.zeros_like(parameter, dtype=dtype) for name, parameter in model.named_parameters()}
    for sequence in many_sequences():
        ids_BT = torch.tensor([sequence.ids.tolist()])
        model.zero_grad()
        (-token_logprobs(model(input_ids=ids_BT).logits, ids_BT).sum() / (11 * MANY)).backward()
        for name, parameter in model.named_parameters():
            total[name] += parameter.grad.to(dtype)
    return {name: tensor.float() for name, tensor in total.items()}


def first_gradient(rank: int, port: int, folder: str, zero_stage: ZeroStage) -> dict[str, torch.Tensor]:
    """The gradient of the same micro-batches as the first step saw it: Adam's running mean starts with a tenth of it."""
    learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=zero_stage, bf16=True))
    learner.load(f"{folder}/llama", optim=OptimConfig(beta1=0.9, grad_clip=0.0), total_steps=1)
    learner.train_step(
        build_batch(many_sequences(), ranks=1, micro_batch_tokens=12, pad_id=0).share(learner.rank), loss=NLL
    )
    learner.save(f"{folder}/gradient-{zero_stage}")
    learner.close()
    return gradient_of(f"{folder}/gradient-{zero_stage}")


def gradient_of(checkpoint: str) -> dict[str, torch.Tensor]:
    """The gradient of the one step that a checkpoint has behind it."""
    state = load_file(f"{checkpoint}/learner/optimizer-00000.safetensors")
    return {name[8:]: tensor * 10 for name, tensor in state.items() if name.startswith("exp_avg/")}


def tied_gradient(rank: int, port: int, folder: str, zero_stage: ZeroStage) -> dict[str, torch.Tensor]:
    """The gradient of one step of a model with tied embeddings, in float32. Leaves a checkpoint of the trained model."""
    learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=zero_stage))
    learner.load(f"{folder}/qwen3", optim=OptimConfig(beta1=0.9, grad_clip=0.0), total_steps=1)
    learner.train_step(batch_of_many().share(learner.rank), loss=NLL)
    learner.save(f"{folder}/tied-{zero_stage}")
    learner.close()
    return gradient_of(f"{folder}/tied-{zero_stage}")


def batch_of_many() -> TrainBatch:
    return build_batch(many_sequences(), ranks=1, micro_batch_tokens=10**6, pad_id=0)


def with_broken_batches(rank: int, port: int, folder: str) -> dict[str, Any]:
    """For each way of keeping the state: which steps were skipped, and the weights of a run with broken steps and without."""
    kinds = [LearnerConfig(zero_stage=stage) for stage in (0, 1, 2, 3)]
    kinds += [LearnerConfig(zero_stage=stage, bf16=True) for stage in (1, 2, 3)]
    kinds += [LearnerConfig(zero_stage=stage, bf16=True, offload="cpu") for stage in (2, 3)]
    sound = [batch(ranks=1, seed=seed) for seed in range(2)]
    broken = [sound[0], broken_batch(ranks=1), infinite_batch(), sound[1]]
    results: dict[str, Any] = {}
    for config in kinds:
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, config)
        runs = []
        for batches in (broken, sound):
            learner.load(f"{folder}/llama", optim=OPTIM, total_steps=STEPS)
            metrics = [learner.train_step(given.share(learner.rank), loss=POLICY) for given in batches]
            runs.append((metrics, weights_of(learner)))
        learner.close()
        results[f"{config.zero_stage}, {config.bf16}, {config.offload}"] = runs
    return results


def accumulation(rank: int, port: int, folder: str) -> dict[str, Any]:
    """The same step in one micro-batch and in many, then other stages and models in the same process."""
    learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig())
    results: dict[str, Any] = {}
    for tokens in (10**6, 20):
        learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS)
        metrics = learner.train_step(batch(ranks=1, micro_batch_tokens=tokens).share(learner.rank), loss=POLICY)
        results[f"micro_batch_tokens {tokens}"] = (metrics, weights_of(learner))
    for name in ("llama", "qwen3"):
        learner.load(f"{folder}/{name}", optim=OPTIM, total_steps=20)
        losses = [learner.train_step(batch(ranks=1).share(learner.rank), loss=NLL)["loss"] for _ in range(20)]
        manifest = learner.publish(3)
        learner.save(f"{folder}/{name}-trained")
        results[name] = (losses, manifest)
    half = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=2, bf16=True))
    half.load(f"{folder}/model", optim=OPTIM, total_steps=20)
    results["bf16"] = [half.train_step(batch(ranks=1).share(half.rank), loss=NLL)["loss"] for _ in range(20)]
    half.close()
    results |= {f"float32 sums {stage}": first_gradient(rank, port, folder, stage) for stage in (1, 2, 3)}
    results |= {f"tied {stage}": tied_gradient(rank, port, folder, stage) for stage in (0, 1, 2, 3)}
    results["broken"] = with_broken_batches(rank, port, folder)
    for nothing in (f"{folder}/nowhere", folder):
        with pytest.raises(ValueError, match="config.json"):
            learner.load(nothing, optim=OPTIM, total_steps=1)
    with pytest.raises(ValueError, match="call load first"):
        learner.train_step(batch(ranks=1).share(learner.rank), loss=NLL)
    with pytest.raises(NoLongerHeld, match="version 3"):
        learner.send(3)
    learner.close()
    return results


@pytest.fixture(scope="module")
def accumulated(folder: Path) -> dict[str, Any]:
    tiny_transformer(LlamaConfig, LlamaForCausalLM).save_pretrained(f"{folder}/llama")
    tiny_transformer(Qwen3Config, Qwen3ForCausalLM).save_pretrained(f"{folder}/qwen3")
    return in_processes(accumulation, ranks=1, arguments=(str(folder),))[0]


def test_many_micro_batches_equal_one_big_batch(accumulated):
    one, one_weights = accumulated["micro_batch_tokens 1000000"]
    many, many_weights = accumulated["micro_batch_tokens 20"]
    assert many["loss"] == pytest.approx(one["loss"], abs=1e-6)
    assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    for name, tensor in one_weights.items():
        assert torch.allclose(many_weights[name], tensor, atol=1e-5), name


def test_training_in_bfloat16_learns(accumulated):
    losses = accumulated["bf16"]
    assert losses[-1] < losses[0] - 0.3
    assert all(math.isfinite(loss) for loss in losses)


def test_gradients_of_bfloat16_are_added_up_in_float32(accumulated, folder):
    exact, rough = (summed_gradient(folder, dtype) for dtype in (torch.float32, torch.bfloat16))

    def error(found: dict[str, torch.Tensor]) -> float:
        off = torch.cat([(found[name] - tensor).flatten() for name, tensor in exact.items()])
        return float(off.norm() / torch.cat([tensor.flatten() for tensor in exact.values()]).norm())

    assert [error(accumulated[f"float32 sums {stage}"]) < 1e-5 for stage in (1, 2, 3)] == [True] * 3
    assert error(rough) > 5e-3  # what bfloat16 would lose over as many micro-batches


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_tied_embeddings_have_both_gradients_and_stay_tied(accumulated, folder, stage):
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/qwen3", dtype=torch.float32)
    ids_BT = torch.tensor([sequence.ids.tolist() for sequence in many_sequences()])
    (-token_logprobs(model(input_ids=ids_BT).logits, ids_BT).sum() / (11 * MANY)).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = accumulated[f"tied {stage}"]
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) < 1e-5 * float(gradient.norm()), name

    trained = AutoModelForCausalLM.from_pretrained(f"{folder}/tied-{stage}", dtype=torch.float32)
    weight = trained.get_input_embeddings().weight
    assert trained.get_output_embeddings().weight is weight
    assert torch.equal(weight, load_file(f"{folder}/tied-{stage}/model.safetensors")["model.embed_tokens.weight"])
    assert not torch.equal(weight, model.get_input_embeddings().weight)


def test_steps_that_are_not_finite_leave_no_trace(accumulated):
    assert len(accumulated["broken"]) == 9
    for name, ((broken, weights), (sound, same)) in accumulated["broken"].items():
        assert [step["skipped"] for step in broken] == [0.0, 1.0, 1.0, 0.0], name
        assert (broken[0], broken[3]) == tuple(sound), name  # loss, gradient, learning rate
        assert all(torch.equal(tensor, same[key]) for key, tensor in weights.items()), name


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_any_causal_model_can_be_trained_and_pushed(accumulated, folder, name):
    losses, pushed = accumulated[name]
    assert losses[-1] < losses[0] - 0.3
    saved = load_file(f"{folder}/{name}-trained/model.safetensors")
    assert set(pushed.names) == set(saved)  # tied weights once
