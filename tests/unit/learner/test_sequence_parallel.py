"""Micro-batches whose tokens are spread over ranks, against whole ones: gradients, metrics, weights and memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.nemotron_h import modeling_nemotron_h
from unit.learner.models.test_experts import recorded
from unit.learner.models.test_scorer import kept_bytes
from unit.learner.models.test_shared_prompt import answer, sliding_window, tokens
from unit.learner.test_worker import in_processes, tiny_nemotron, weights_of

from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.batches.pairs import Pair
from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.sequence_parallel import require_divisible
from temper.learner.worker import TrainerWorker

RATE = 0.1
OPTIM = OptimConfig(learning_rate=RATE, warmup_steps=0, eps=1.0, beta1=0.0, beta2=0.0, grad_clip=0.0)
"""A step is rate * g / (|g| + 1), so that equal weights mean equal gradients."""
PLAIN = LearnerConfig(shared_prompts=False, logit_tokens=40)
SHORT = replace(PLAIN, micro_batch_tokens=30)
"""Several micro-batches, and one of weight 0 for two of four ranks."""
POLICY = LossConfig(kl_coefficient=0.05, entropy_bonus=0.01, error_guard=1.4, negative_guard=0.001)
GSPO = LossConfig(surrogate="gspo", aggregation="sequence", kl_coefficient=0.05)
NORMALISED = LossConfig(advantage="reinforce_pp", kl_coefficient=0.05, kl_in="reward")
NLL, DPO = LossConfig(objective="nll"), LossConfig(objective="dpo")
MAMBA_HEADS = 8
HEADS_SEEN: set[int] = set()
"""Heads that the kernel of a whole layer got in this process."""
FUSED, HALF = "kernel of a whole Mamba-2 layer", "bfloat16"
LENGTHS = (90, 4, 30, 6, 5, 50)
CASES: dict[str, tuple[str, LearnerConfig, LossConfig]] = {
    "policy": ("hybrid", SHORT, POLICY),
    "sequence ratios at stage 1": ("hybrid", replace(PLAIN, zero_stage=1), GSPO),
    "pairs at stage 2": ("hybrid", replace(PLAIN, zero_stage=2), DPO),
    "normalised at stage 3": ("hybrid", replace(SHORT, zero_stage=3), NORMALISED),
    "recomputed": ("hybrid", replace(PLAIN, zero_stage=3, recompute="full"), NLL),
    "adapters": ("hybrid", replace(PLAIN, zero_stage=2, lora=LoraConfig(rank=2, alpha=4)), POLICY),
    "experts": ("hybrid", replace(PLAIN, router_replay=True), POLICY),
    "transformer": ("qwen3", replace(PLAIN, zero_stage=3), POLICY),
    FUSED: ("hybrid", replace(PLAIN, zero_stage=1), POLICY),
    HALF: ("hybrid", replace(PLAIN, zero_stage=1, bf16=True), NLL),
}
ON_FOUR = ("policy", "pairs at stage 2", "normalised at stage 3")


def hybrid() -> PreTrainedModel:
    """A hybrid of each type of layer, whose key-value heads four ranks repeat."""
    torch.manual_seed(0)
    return NemotronHForCausalLM(
        NemotronHConfig(
            vocab_size=264,
            hidden_size=64,
            layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            mamba_num_heads=MAMBA_HEADS,
            mamba_head_dim=16,
            expand=2,
            n_groups=4,
            ssm_state_size=8,
            intermediate_size=96,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=32,
            n_routed_experts=8,
            num_experts_per_tok=2,
            chunk_size=8,
        )
    )


def qwen3() -> PreTrainedModel:
    torch.manual_seed(0)
    shape = {"vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    return Qwen3ForCausalLM(
        Qwen3Config(num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True, **shape)
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for make in (hybrid, qwen3):
        make().save_pretrained(folder / make.__name__)
    return folder


def whole_layer(
    zxbcdt: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dt_bias: torch.Tensor, A: torch.Tensor, **named: Any
) -> torch.Tensor:
    """The function of mamba-ssm's kernel of a whole layer, by the parts that CPUs have."""
    heads, width, groups = len(A), named["headdim"], named["ngroups"]
    HEADS_SEEN.add(heads)
    inner = heads * width
    z, xbc, dt = zxbcdt.split([inner, len(weight), heads], dim=-1)
    given = {"seq_idx": named.get("seq_idx")}
    mixed = modeling_nemotron_h.causal_conv1d_fn(xbc.transpose(1, 2), weight, bias, activation="silu", **given)
    states = (len(weight) - inner) // 2
    x, b, c = mixed.transpose(1, 2).split([inner, states, states], dim=-1)
    y = modeling_nemotron_h.mamba2_chunk_scan(
        x.unflatten(-1, (heads, width)),
        dt,
        A,
        b.unflatten(-1, (groups, -1)),
        c.unflatten(-1, (groups, -1)),
        chunk_size=named["chunk_size"],
        D=named["D"],
        dt_bias=dt_bias,
        dt_softplus=True,
        dt_limit=named["dt_limit"],
        **given,
    )
    gated = (y.flatten(-2) * functional.silu(z)).unflatten(-1, (groups, -1))
    normed = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + named["rmsnorm_eps"])
    output = normed.flatten(-2) * named["rmsnorm_weight"]
    return output if named["outproj_weight"] is None else functional.linear(output, named["outproj_weight"])


def batches(learner: LearnerConfig, loss: LossConfig, folder: str) -> list[TrainBatch]:
    """Answers of unlike lengths in two batches, or pairs of them."""
    samples = [
        replace(answer(tokens(5, seed=n), length, seed=n, group=None), place=n) for n, length in enumerate(LENGTHS)
    ]
    samples[1] = replace(samples[1], temperature=0.7)
    if learner.router_replay:
        model = AutoModelForCausalLM.from_pretrained(f"{folder}/hybrid", dtype=torch.float32)
        samples = [replace(one, experts=recorded(model, tuple(one.ids.tolist()))) for one in samples]
    builder = BatchBuilder(config=learner, pad_id=0)
    if loss.objective == "dpo":
        pairs = [Pair(chosen=one, rejected=other) for one, other in zip(samples[::2], samples[1::2], strict=True)]
        return [builder.build_from_pairs(pairs)]
    return [builder.build_from_samples(part, loss) for part in (samples[:4], samples[4:])]


Results = list[dict[str, Any]]


def train_cases(rank: int, port: int, folder: str, ranks: int, size: int, names: tuple[str, ...]) -> dict[str, Results]:
    """Metrics, weights and records of each case, after a step of one batch, and after another one of all batches."""
    found: dict[str, Results] = {}
    for name in names:
        model, plain, loss = CASES[name]
        learner = replace(plain, ranks=ranks, sequence_parallel=size)
        worker = TrainerWorker(rank, ranks, "127.0.0.1", port, learner)
        worker.load(f"{folder}/{model}", optim=OPTIM, total_steps=9)
        shares = [batch.share(rank // size) for batch in batches(learner, loss, folder)]
        found[name] = []
        with pytest.MonkeyPatch.context() as patch:
            if name == FUSED:
                patch.setattr(modeling_nemotron_h, "mamba2_split_conv1d_scan_combined", whole_layer)
            for updates in (shares[:1], shares):
                metrics = worker.train(updates, loss=loss)
                records = {one.place: one.logprobs_T for one in worker.token_records()[1]}
                found[name].append({"metrics": metrics, "weights": weights_of(worker), "records": records})
        worker.close()
    if FUSED in names:  # a reference is first tried on whole sequences
        assert {MAMBA_HEADS, MAMBA_HEADS // size} == HEADS_SEEN
    return found


@pytest.fixture(scope="module")
def alone(models: Path) -> dict[str, Results]:
    return in_processes(train_cases, ranks=1, arguments=(str(models), 1, 1, tuple(CASES)), seconds=800.0)[0]


@pytest.mark.parametrize(
    ("ranks", "size", "names"),
    [(2, 2, tuple(CASES)), (4, 2, ON_FOUR), pytest.param(4, 4, ON_FOUR, marks=pytest.mark.slow)],
)
def test_shards_train_like_whole_sequences(
    models: Path, alone: dict[str, Results], ranks: int, size: int, names: tuple[str, ...]
) -> None:
    results = in_processes(train_cases, ranks=ranks, arguments=(str(models), ranks, size, names), seconds=800.0)
    for name in names:
        expected = alone[name]
        near = 1e-5 if name != HALF else 0.02
        for at, want in enumerate(expected):
            found = results[0][name][at]
            for key in want["metrics"].keys() - {"step_seconds", "tokens_per_s"}:
                assert found["metrics"][key] == pytest.approx(want["metrics"][key], abs=near, rel=near), (name, key)
            for key, weight in want["weights"].items():
                assert float((found["weights"][key] - weight).abs().max()) <= near * RATE, (name, key)
            records = [record for one in results for record in one[name][at]["records"].items()]
            assert sorted(place for place, _ in records) == sorted(want["records"])  # none twice
            for place, logprobs_T in records:
                assert logprobs_T == pytest.approx(want["records"][place], abs=near, rel=near), (name, place)


def measure_kept_bytes(rank: int, port: int, folder: str, ranks: int) -> dict[str, int]:
    """The bytes that a rank keeps between the passes over a long and a short sequence, end to end."""
    found: dict[str, int] = {}
    for name in ("hybrid", "qwen3"):
        learner = replace(PLAIN, ranks=ranks, sequence_parallel=ranks)
        worker = TrainerWorker(rank, ranks, "127.0.0.1", port, learner)
        worker.load(f"{folder}/{name}", optim=OPTIM, total_steps=9)
        engine = worker._engine()
        ids_BT = torch.tensor([tokens(900, seed=seed) for seed in range(2)])
        wanted_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        wanted_BT[1, 100:] = False
        with kept_bytes(engine.model) as total:
            engine.scorer(ids_BT, wanted_BT)
        found[name] = total[0]
        worker.close()
    return found


def test_activations_are_divided_by_the_ranks(models: Path) -> None:
    (whole,) = in_processes(measure_kept_bytes, ranks=1, arguments=(str(models), 1))
    for ranks in (2, 4):
        for found in in_processes(measure_kept_bytes, ranks=ranks, arguments=(str(models), ranks), seconds=800.0):
            for name, nbytes in whole.items():
                assert found[name] < 1.05 * nbytes / ranks


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_are_refused(kind: str) -> None:
    config = qwen3().config
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0}
    with pytest.raises(ValueError, match=kind):
        require_divisible(config, size=2)


def find_refusals(rank: int, port: int, folder: str, config: LearnerConfig, names: tuple[str, ...]) -> list[str]:
    """Why models do not train with a configuration."""
    found = []
    worker = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    for name in names:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - returned
            worker.load(f"{folder}/{name}", optim=OPTIM, total_steps=9)
        found.append(str(caught.value))
    return found


def test_a_model_that_ranks_cannot_share_is_refused(models: Path) -> None:
    tiny_nemotron().save_pretrained(models / "one_group")
    sliding_window(models / "window")
    spread, names = replace(PLAIN, ranks=2, sequence_parallel=2), ("one_group", "window")
    for heads, mixed in in_processes(find_refusals, ranks=2, arguments=(str(models), spread, names)):
        assert "learner.sequence_parallel=2 with a model of n_groups=1" in heads
        assert "learner.sequence_parallel=2 with a model of type qwen3" in mixed
