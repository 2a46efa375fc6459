"""The divergence from the weights that a stage began with, on a real rank with a tiny model."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import tiny_models
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter
from unit.learner.test_worker import in_processes, tensor_bytes

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig, ZeroStage
from temper.learner.losses.config import LossConfig
from temper.learner.models.loading import read_model
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

OPTIM = OptimConfig(learning_rate=1e-3, warmup_steps=0)
NEAR = LossConfig(kl_coefficient=0.5, entropy_bonus=0.01)
PAID = LossConfig(kl_coefficient=0.5, kl="k1", kl_in="reward")

Runs = dict[str, list[dict[str, float]]]
"""The metrics of each step, by the name of the run."""


def batch(*, ranks: int = 1) -> TrainBatch:
    rng = random.Random(0)
    rows = [
        TrainingSample(
            ids=as_ids(tuple(rng.randrange(3, 200) for _ in range(length))),
            trained_T=as_marks(tuple(place >= length // 2 for place in range(length))),
            advantages_T=as_floats((1.0 if length % 2 else -1.0,) * length),
            behaviour_T=as_floats(tuple(-5.6 if place >= length // 2 else math.nan for place in range(length))),
        )
        for length in (21, 16, 13, 8)
    ]
    return build_batch(rows, ranks=ranks, micro_batch_tokens=40, pad_id=0)


def story(folder: Path) -> Runs:
    """Steps near the reference, the same resumed from a moved folder, and steps with other settings."""
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    runs: Runs = {}
    rank.load(str(folder / "run/model"), optim=OPTIM, total_steps=4)
    runs["near"] = [rank.train_step(batch().share(rank.rank), loss=NEAR) for _ in range(2)]
    rank.save(str(folder / "run/rl/000002.writing"))
    runs["near"] += [rank.train_step(batch().share(rank.rank), loss=NEAR) for _ in range(2)]
    (folder / "run/rl/000002.writing").rename(folder / "run/rl/000002")
    moved = (folder / "run").rename(folder / "moved")
    rank.load(str(moved / "rl/000002"), optim=OPTIM, total_steps=4)
    rank.restore(str(moved / "rl/000002"))
    rank.load_reference()
    away = (moved / "model").rename(moved / "away")  # its first step reads nothing any more
    runs["continued"] = [rank.train_step(batch().share(rank.rank), loss=NEAR) for _ in range(2)]
    away.rename(moved / "model")
    for name, loss in (("free", LossConfig()), ("paid", PAID)):
        rank.load(str(moved / "model"), optim=OPTIM, total_steps=4)
        runs[name] = [rank.train_step(batch().share(rank.rank), loss=loss) for _ in range(4)]
    runs |= with_dropout(rank, folder)
    refuses_another_start(rank, moved)
    rank.close()
    assert rank.reference is None
    return runs


def with_dropout(rank: TrainerWorker, folder: Path) -> Runs:
    """The first step of a model with dropout, twice each: near its reference, and from supervised tokens."""
    config = Qwen3Config(vocab_size=288, attention_dropout=0.5, **tiny_models.DENSE)
    Qwen3ForCausalLM(config).save_pretrained(folder / "dropout")
    runs: Runs = {}
    for name, loss in (("no dropout", NEAR), ("dropout", LossConfig(objective="nll"))):
        runs[name] = []
        for seed in range(2):
            rank.load(str(folder / "dropout"), optim=OPTIM, total_steps=1)
            torch.manual_seed(seed)
            runs[name].append(rank.train_step(batch().share(rank.rank), loss=loss))
    return runs


def refuses_another_start(rank: TrainerWorker, folder: Path) -> None:
    """Hold a model that was just loaded against another one: as if it were its start, and as its teacher."""
    model, other = folder / "model", folder / "rl/000002"
    rank.load(str(model), optim=OPTIM, total_steps=1)
    rank.start_dir = other
    with pytest.raises(ValueError, match="before the first update"):
        rank.train_step(batch().share(rank.rank), loss=NEAR)
    rank.load(str(model), optim=OPTIM, total_steps=1, teacher_dir=str(other))
    assert rank.train_step(batch().share(rank.rank), loss=NEAR)["kl"] > 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("reference")
    tiny_models.nemotron_h(folder / "run" / "model")
    return story(folder)


def test_a_stage_begins_at_its_reference_and_leaves_it(runs: Runs) -> None:
    for name in ("near", "paid"):
        first, *others = [step["kl"] for step in runs[name]]
        assert first == 0.0
        assert all(value != 0.0 for value in others)
    assert all(step["kl"] >= 0 for step in runs["near"])


def test_a_continued_stage_keeps_the_reference_of_its_beginning(runs: Runs) -> None:
    assert runs["continued"][0]["kl"] > 0
    for name in ("loss", "kl", "policy_entropy"):
        assert [step[name] for step in runs["continued"]] == [step[name] for step in runs["near"][2:]]


def first_step_of_a_token(rank: int, port: int, model: str) -> float:
    """The divergence of a first step on one answer of one token: a single row, of which kernels differ by alignment."""
    learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=1))
    learner.load(model, optim=OPTIM, total_steps=1)
    last = tuple(place == 9 for place in range(10))
    row = TrainingSample(
        ids=as_ids(tuple(range(3, 13))),
        trained_T=as_marks(last),
        advantages_T=as_floats((1.0,) * 10),
        behaviour_T=as_floats(tuple(-5.6 if own else math.nan for own in last)),
    )
    one = build_batch([row], ranks=1, micro_batch_tokens=40, pad_id=0)
    divergence = learner.train_step(one.share(0), loss=NEAR)["kl"]
    learner.close()
    return divergence


def test_a_stage_may_begin_with_one_token(tmp_path: Path) -> None:
    model = str(tiny_models.nemotron_h(tmp_path / "model"))
    assert in_processes(first_step_of_a_token, ranks=1, arguments=(model,))[0] == pytest.approx(0.0, abs=1e-6)


def test_only_a_coefficient_makes_the_divergence_count(runs: Runs) -> None:
    assert all("kl" not in step and "policy_entropy" not in step for step in runs["free"])
    assert runs["near"][0]["loss"] == pytest.approx(runs["free"][0]["loss"] - 0.01 * runs["near"][0]["policy_entropy"])
    for name in ("near", "paid"):
        assert runs[name][1]["grad_norm"] != pytest.approx(runs["free"][1]["grad_norm"], rel=1e-4)


def test_the_first_entropy_is_near_a_uniform_choices(runs: Runs) -> None:
    first = runs["near"][0]
    assert math.log(200) < first["policy_entropy"] < math.log(300)


def test_dropout_is_for_supervised_training_alone(runs: Runs) -> None:
    first, again = runs["no dropout"]
    assert first["loss"] == again["loss"]
    assert first["kl"] == 0.0
    first, again = runs["dropout"]
    assert first["loss"] != again["loss"]


def spread(rank: int, port: int, model: str, config: LearnerConfig) -> tuple[list[dict[str, float]], int]:
    """Steps near the reference, and the bytes of tensors left after closing."""
    learner = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    learner.load(model, optim=OPTIM, total_steps=4)
    metrics = [learner.train_step(batch(ranks=config.ranks).share(learner.rank), loss=NEAR) for _ in range(3)]
    learner.close()
    return metrics, tensor_bytes()


@pytest.mark.slow
def test_a_partitioned_reference_gives_the_same_divergence(tmp_path: Path) -> None:
    model = str(tiny_models.nemotron_h(tmp_path / "model"))
    alone = in_processes(spread, ranks=1, arguments=(model, LearnerConfig()))
    together = in_processes(spread, ranks=2, arguments=(model, LearnerConfig(ranks=2, zero_stage=3)))
    for metrics, left in together:
        assert left < 1000
        for name in ("loss", "kl", "grad_norm"):
            expected = [step[name] for step in alone[0][0]]
            assert [step[name] for step in metrics] == pytest.approx(expected, rel=1e-3, abs=1e-6), name


STAGES: tuple[ZeroStage, ...] = (1, 2, 3)
LONG = 2048


def long_qwen3(directory: Path) -> str:
    """A tiny Qwen3 whose positions reach far."""
    shape = {
        **tiny_models.DENSE,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    }
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(vocab_size=288, initializer_range=0.1, **shape)).save_pretrained(directory)
    return str(directory)


def biased_experts(directory: Path) -> str:
    """A hybrid whose routers choose by a bias that bfloat16 can't hold."""
    model = read_model(tiny_models.nemotron_h_moe(directory))
    for module in model.modules():
        if isinstance(module, NemotronHTopkRouter):
            module.e_score_correction_bias += 5 + 0.02 * torch.randn(8, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(directory)
    return str(directory)


def just_loaded(rank: int, port: int, model: str, length: int) -> dict[int, tuple[torch.Tensor, torch.Tensor, bool]]:
    """The scores of a policy and of its reference in bfloat16, by the ZeRO stage, and whether all buffers are exact."""
    exact = dict(read_model(Path(model)).named_buffers())
    ids_BT = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))
    found: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}
    for stage in STAGES:
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=stage, bf16=True))
        learner.load(model, optim=OPTIM, total_steps=1)
        learner.load_reference()
        assert learner.engine is not None
        wanted_BT = torch.ones_like(ids_BT).bool()
        assert learner.reference is not None
        with torch.no_grad():
            both = [
                scorer(ids_BT, wanted_BT).logprobs_BT for scorer in (learner.engine.scorer, learner.reference.scorer)
            ]
        held = dict(learner.engine.model.named_buffers())
        same = all(torch.equal(held[name], buffer) for name, buffer in exact.items())
        found[stage] = (both[0], both[1], same and len(held) == len(exact) > 0)
        learner.close()
    return found


@pytest.mark.parametrize(("make", "length"), [(long_qwen3, LONG), (biased_experts, 128)])
def test_a_policy_and_its_reference_start_equal_in_bfloat16(
    make: Callable[[Path], str], length: int, tmp_path: Path
) -> None:
    (found,) = in_processes(just_loaded, ranks=1, arguments=(make(tmp_path / "model"), length))
    for policy_BT, reference_BT, has_exact_buffers in found.values():
        assert torch.equal(policy_BT, reference_BT)
        assert has_exact_buffers
    assert found[1][0].std() > 0.1
