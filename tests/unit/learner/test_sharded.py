"""Loading and saving by ranks that each own a part of the model."""

import gc
import threading
from dataclasses import replace
from pathlib import Path

import deepspeed
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.process_memory import resident
from transformers import (
    AutoModelForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from unit.learner.test_worker import OPTIM, POLICY, batch, in_processes, weights_of
from unit.learner.test_worker_resume import optimizer_state

from temper.learner.config import LearnerConfig, LoraConfig, ZeroStage
from temper.learner.engine.placement import Placement
from temper.learner.models.loading import read_model
from temper.learner.worker import TrainerWorker

FAMILIES = ("qwen3", "qwen3_tied", "gemma3", "nemotron_h", "nemotron_h_moe", "qwen3_moe")
"""Dense, tied, scaled embeddings, a hybrid, and expert stacks of two kinds."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        getattr(tiny_models, family)(folder / family)
    return folder


def loaded(rank: int, port: int, folder: str) -> list[str]:
    """The names of parameters and buffers that a rank of two at stage 3 does not get as a whole model has them."""
    wrong: list[str] = []
    for bf16 in (False, True):
        config = LearnerConfig(ranks=2, zero_stage=3, bf16=bf16)
        TrainerWorker(rank, 2, "127.0.0.1", port, config)
        for family in FAMILIES:
            plain, own = read_model(Path(folder, family)), read_model(Path(folder, family), place=Placement(config))
            dtype, names = torch.bfloat16 if bf16 else torch.float32, dict(own.named_parameters())
            assert all(parameter.numel() == 0 for parameter in names.values())
            with deepspeed.zero.GatheredParameters(list(names.values())):
                here = {name: parameter.detach().clone() for name, parameter in names.items()}
            expected = {name: parameter.to(dtype) for name, parameter in plain.named_parameters()}
            assert list(here) == list(expected)
            here |= dict(own.named_buffers())
            for name, tensor in (expected | dict(plain.named_buffers())).items():
                if not torch.equal(here[name], tensor) or here[name].dtype != tensor.dtype:
                    wrong.append(f"{family}, {dtype}: {name}")
    return wrong


def test_each_rank_partitions_the_model_that_one_rank_reads(models: Path) -> None:
    assert in_processes(loaded, ranks=2, arguments=(str(models),)) == [[], []]


def adapted(rank: int, port: int, folder: str, zero_stage: ZeroStage) -> dict[str, torch.Tensor]:
    """The adapters of a new stage, and the weights that engines would get."""
    config = LearnerConfig(ranks=2, zero_stage=zero_stage, bf16=True, lora=LoraConfig(rank=2, alpha=4))
    learner = TrainerWorker(rank, 2, "127.0.0.1", port, config)
    learner.load(f"{folder}/nemotron_h", optim=OPTIM, total_steps=4)
    assert learner.engine is not None
    buckets = [*learner.engine.adapter_parameters(), *learner.engine.checkpoint_parameters()]
    found = {name: tensor.clone() for bucket in buckets for name, tensor in bucket.items()}
    learner.close()
    return found


def test_adapters_start_alike_on_partitioned_weights(models: Path) -> None:
    whole, parted = (in_processes(adapted, ranks=2, arguments=(str(models), stage))[0] for stage in (2, 3))
    assert whole.keys() == parted.keys()
    assert all(torch.equal(tensor, parted[name]) for name, tensor in whole.items())


class PeakMemory:
    """The peak of this process's private memory above its start, sampled by a thread. Mapped files do not count."""

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        self.start = self.peak = resident(threading.get_native_id())["RssAnon"]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    def _sample(self) -> None:
        while not self.ended.wait(0.001):
            self.peak = max(self.peak, resident(threading.get_native_id())["RssAnon"])

    @property
    def bytes(self) -> int:
        return self.peak - self.start


LARGE = Qwen3MoeConfig(
    vocab_size=288,
    hidden_size=256,
    num_hidden_layers=36,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    tie_word_embeddings=False,
)


def peaks(rank: int, port: int, folder: str) -> list[float]:
    """The peak of reading the model, relative to its bytes in float32, for a policy in both types and for a reference."""
    found = []
    for bf16, part in ((False, ""), (True, ""), (True, "frozen")):
        config = LearnerConfig(ranks=2, zero_stage=3, bf16=bf16)
        TrainerWorker(rank, 2, "127.0.0.1", port, config)
        read_model(Path(folder, "qwen3_moe"), place=Placement(config, folder=part))  # imports
        with PeakMemory() as memory:
            model = read_model(Path(folder, "large"), place=Placement(config, folder=part))
        found.append(memory.bytes / (4 * sum(vars(one)["ds_numel"] for one in model.parameters())))
        del model
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loading_takes_little_more_than_a_ranks_own_part(models: Path, dtype: torch.dtype) -> None:
    """Two ranks, a model with expert stacks, of 150 MB in float32."""
    Qwen3MoeForCausalLM(LARGE).to(dtype).save_pretrained(models / "large")
    for exact, rounded, reference in in_processes(peaks, ranks=2, arguments=(str(models),)):
        assert exact < 0.6
        assert max(rounded, reference) < 0.4


def odd_nemotron(directory: Path) -> None:
    """A hybrid with parameters of 3 entries, which two ranks do not share evenly."""
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 24, "chunk_size": 8}
    mamba = {"mamba_num_heads": 3, "mamba_head_dim": 32, "expand": 2, "n_groups": 1, "ssm_state_size": 16}
    layers = ["linear_attention", "mlp", "full_attention"]
    config = NemotronHConfig(vocab_size=288, layers_block_type=layers, intermediate_size=64, **shape, **mamba)
    NemotronHForCausalLM(config).save_pretrained(directory)


KINDS = {"odd": False, "qwen3_moe": True}
"""Models, and whether they train in bfloat16."""
Steps = dict[str, tuple[list[float], dict[str, torch.Tensor] | None]]


def trained(rank: int, port: int, folder: str, learner: LearnerConfig, source: str, target: str, steps: int) -> Steps:
    """The losses and the weights of steps from a model or from a checkpoint, which is saved again as `target` first."""
    found: Steps = {}
    for name, bf16 in KINDS.items():
        worker = TrainerWorker(rank, learner.ranks, "127.0.0.1", port, replace(learner, bf16=bf16))
        worker.load(f"{folder}/{source}{name}", optim=OPTIM, total_steps=9)
        if source:
            worker.restore(f"{folder}/{source}{name}")
        else:
            worker.save(f"{folder}/first-{name}")
            worker.train_step(batch(ranks=learner.ranks, seed=9).share(rank), loss=POLICY)
        worker.save(f"{folder}/{target}{name}", beside=True)
        batches = [batch(ranks=learner.ranks, seed=seed) for seed in range(steps)]
        losses = [worker.train_step(one.share(rank), loss=POLICY)["loss"] for one in batches]
        worker.write()
        found[name] = losses, weights_of(worker)
        worker.close()
    return found


def test_a_run_moves_between_ranks_and_stages_bit_for_bit(models: Path) -> None:
    """From two ranks at stage 3 to one at stage 1, whose checkpoint has one file, and back."""
    odd_nemotron(models / "odd")
    two, one = LearnerConfig(ranks=2, zero_stage=3), LearnerConfig(zero_stage=1)
    straight = in_processes(trained, ranks=2, arguments=(str(models), two, "", "a-", 3))
    in_processes(trained, ranks=1, arguments=(str(models), one, "a-", "b-", 0))
    back = in_processes(trained, ranks=2, arguments=(str(models), two, "b-", "c-", 3))
    for name, bf16 in KINDS.items():
        for (losses, weights), (again, same) in zip(
            *([rank[name] for rank in run] for run in (straight, back)), strict=True
        ):
            assert losses == again
            assert weights is None or all(torch.equal(tensor, same[key]) for key, tensor in weights.items())
        states = [optimizer_state(f"{models}/{place}-{name}") for place in "abc"]
        for state in states[1:]:
            assert all(torch.equal(tensor, state[key]) for key, tensor in states[0].items())
            assert state.keys() == states[0].keys()

        alone, parted = (
            AutoModelForCausalLM.from_pretrained(models / f"{place}-{name}").state_dict() for place in "ba"
        )
        assert all(torch.equal(tensor, parted[key]) for key, tensor in alone.items())
        if bf16:  # the file of the model is in float32
            file = dict(read_model(models / name).named_parameters())
            masters = {key: one for key, one in optimizer_state(f"{models}/first-{name}").items() if "master/" in key}
            assert masters.keys() == {f"master/{key}" for key in file}
            assert all(torch.equal(tensor, file[key.removeprefix("master/")]) for key, tensor in masters.items())
    for pattern in ("model-*.safetensors", "learner/optimizer-*.safetensors"):
        sizes = [path.stat().st_size for path in (models / "a-qwen3_moe").glob(pattern)]
        assert len(sizes) == 2
        assert max(sizes) < 1.2 * min(sizes)


def tied(folder: Path, *, equal: bool) -> Path:
    """A float32 model with tied weights whose file holds both."""
    tiny_models.qwen3_tied(folder)
    weights = load_file(folder / "model.safetensors")
    head = weights["model.embed_tokens.weight"] + (0.0 if equal else 0.5)
    save_file(weights | {"lm_head.weight": head.clone()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def masters(rank: int, port: int, folder: str, zero_stage: ZeroStage) -> dict[str, torch.Tensor] | str:
    """The float32 weights of bfloat16 training, or why the model is refused."""
    worker = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=zero_stage, bf16=True))
    try:
        worker.load(folder, optim=OPTIM, total_steps=1)
    except ValueError as error:
        return str(error)
    worker.save(f"{folder}-saved")
    return {name: one for name, one in optimizer_state(f"{folder}-saved").items() if name.startswith("master/")}


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_a_file_may_hold_a_tied_weight_twice(tmp_path: Path, zero_stage: ZeroStage) -> None:
    folder = tied(tmp_path / "model", equal=True)
    (found,) = in_processes(masters, ranks=1, arguments=(str(folder), zero_stage))
    exact = {f"master/{name}": one for name, one in read_model(folder).named_parameters()}
    assert found.keys() == exact.keys()
    assert all(torch.equal(found[name], one) for name, one in exact.items())


def test_tied_weights_that_differ_are_refused_at_stage_3(tmp_path: Path) -> None:
    (found,) = in_processes(masters, ranks=1, arguments=(str(tied(tmp_path / "model", equal=False)), 3))
    assert "tie_word_embeddings" in found


def part_lost(rank: int, port: int, folder: str) -> str:
    """Why a rank refuses a checkpoint that lacks the files of rank 1."""
    worker = TrainerWorker(rank, 2, "127.0.0.1", port, LearnerConfig(ranks=2, zero_stage=3))
    worker.load(f"{folder}/qwen3", optim=OPTIM, total_steps=9)
    worker.train_step(batch(ranks=2, seed=1).share(rank), loss=POLICY)
    worker.save(f"{folder}/part")
    torch.distributed.barrier()
    if rank == 1:
        Path(folder, "part", "learner", "optimizer-00001.safetensors").unlink()
    torch.distributed.barrier()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - returned
        worker.restore(f"{folder}/part")
    return str(caught.value)


def test_the_state_of_a_missing_rank_is_noticed(models: Path) -> None:
    assert all("1 of 2 ranks" in reason for reason in in_processes(part_lost, ranks=2, arguments=(str(models),)))
