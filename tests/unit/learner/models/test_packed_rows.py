"""Rows laid end to end against padded rows: scores, gradients, states at borders, experts, and models that do not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_models
from transformers import AutoModelForCausalLM, FalconConfig, PreTrainedModel, RecurrentGemmaConfig
from unit.learner.models.test_experts import perturbed, recorded
from unit.learner.models.test_shared_prompt import (
    LONGEST,
    answer,
    gradients,
    loaded,
    mamba_at_the_end,
    sliding_window,
    tokens,
)
from unit.learner.test_worker import in_processes, weights_of

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.pairs import Pair, build_pair_batch
from temper.learner.batches.pass_experts import PassExperts, PassRow
from temper.learner.config import LearnerConfig, OptimConfig, Recomputed, ZeroStage
from temper.learner.losses.config import LossConfig
from temper.learner.models.experts import ExpertReplay
from temper.learner.models.fresh import make_model
from temper.learner.models.loading import recompute
from temper.learner.models.logprobs import token_entropies, token_logprobs
from temper.learner.models.scorer import Scorer, Scores
from temper.learner.worker import TrainerWorker

LENGTHS = (48, 3, 17, 2, 9, 30)
"""Tokens of each row. Those after the last wanted one are padding."""
FAMILIES = [
    tiny_models.nemotron_h,
    tiny_models.qwen3,
    tiny_models.llama,
    mamba_at_the_end,
    tiny_models.nemotron_h_moe,
    tiny_models.qwen3_moe,
]
WARM_B = torch.linspace(0.7, 1.4, len(LENGTHS))


def a_batch(*, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of random tokens, two thirds of them wanted, and always the last."""
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(0, 250, (len(LENGTHS), max(LENGTHS)), generator=draw)
    wanted_BT = torch.rand(ids_BT.shape, generator=draw) < 0.7
    for row, length in enumerate(LENGTHS):
        wanted_BT[row, length:] = False
        wanted_BT[row, length - 1] = True
    wanted_BT[:, 0] = False
    return ids_BT, wanted_BT


@contextmanager
def passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """The tokens of each pass of a model."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _module, _inputs, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    yield seen
    hook.remove()


def weighed(scores: Scores) -> torch.Tensor:
    """A sum in which each token counts differently, at the scale of a mean."""
    factors_BT = torch.linspace(-1.0, 2.0, scores.logprobs_BT.numel()).view_as(scores.logprobs_BT)
    return (factors_BT * (scores.logprobs_BT + 0.3 * scores.entropies_BT)).sum() / sum(LENGTHS)


def padded_scores(model: PreTrainedModel, ids_BT: torch.Tensor, wanted_BT: torch.Tensor) -> Scores:
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits / WARM_B[:, None, None]
    return Scores(
        logprobs_BT=token_logprobs(logits_BTV, ids_BT) * wanted_BT,
        entropies_BT=token_entropies(logits_BTV) * wanted_BT,
    )


def assert_equal(found: Scores, expected: Scores) -> None:
    for name in ("logprobs_BT", "entropies_BT"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-6), name


def assert_equal_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) <= 1e-6 + 1e-5 * float(gradient.abs().max()), name


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_packed_rows_score_like_padded_ones(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    model = loaded(make, tmp_path)
    ids_BT, wanted_BT = a_batch()
    expected = padded_scores(model, ids_BT, wanted_BT)
    plain = gradients(model, weighed(expected))
    scorer = Scorer(model, model, tokens=10**6)
    with passes(model) as seen:
        found = scorer(ids_BT, wanted_BT, entropy=True, temperatures_B=WARM_B)
    assert seen == [sum(LENGTHS)]
    assert_equal(found, expected)
    assert_equal_gradients(gradients(model, weighed(found)), plain)


@pytest.mark.parametrize("make", [tiny_models.gemma3, sliding_window])
def test_rows_of_a_model_with_a_window_are_padded(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Some models apply the window in the mask alone, which packed rows replace."""
    model = loaded(make, tmp_path)
    assert not Scorer(model, model, tokens=10**6).packs


@pytest.mark.parametrize("make", [tiny_models.nemotron_h, tiny_models.qwen3])
def test_nothing_crosses_the_border_of_a_row(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Other tokens in one row change its scores, and not a bit of any other row."""
    model = loaded(make, tmp_path)
    scorer = Scorer(model, model, tokens=10**6)
    ids_BT, wanted_BT = a_batch()
    others_BT, _ = a_batch(seed=1)
    for row in range(len(LENGTHS)):
        changed_BT = ids_BT.clone()
        changed_BT[row] = others_BT[row]
        with torch.no_grad(), passes(model) as seen:
            before, after = (scorer(ids, wanted_BT).logprobs_BT for ids in (ids_BT, changed_BT))
        assert seen == [sum(LENGTHS)] * 2
        same_B = (before == after).all(1)
        assert same_B.tolist() == [other != row for other in range(len(LENGTHS))]


@pytest.mark.parametrize("make", [tiny_models.nemotron_h_moe, tiny_models.qwen3_moe])
def test_packed_rows_replay_and_count_experts_like_padded_ones(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    before = loaded(make, tmp_path)
    ids_BT, wanted_BT = a_batch()
    ids = [tuple(row[:length].tolist()) for row, length in zip(ids_BT, LENGTHS, strict=True)]
    choices = [recorded(before, own) for own in ids]
    experts = PassExperts.pad(
        [PassRow(length=len(own), samples=1, experts_TLK=one) for own, one in zip(ids, choices, strict=True)]
    )
    model = perturbed(before, scale=0.3)
    scorer = Scorer(model, model, tokens=10**6)
    replay = ExpertReplay(model, replay=True, device=torch.device("cpu"))
    replay.queue_passes([experts])
    expected = padded_scores(model, ids_BT, wanted_BT)
    padded, plain = replay._totals.clone(), gradients(model, weighed(expected))
    free = scorer(ids_BT, wanted_BT, entropy=True, temperatures_B=WARM_B)
    replay.queue_passes([experts])
    with passes(model) as seen:
        found = scorer(ids_BT, wanted_BT, entropy=True, temperatures_B=WARM_B)
    assert seen == [sum(LENGTHS)]
    assert_equal(found, expected)
    assert not torch.allclose(free.logprobs_BT, found.logprobs_BT, atol=1e-3)
    assert_equal_gradients(gradients(model, weighed(found)), plain)
    assert torch.equal(replay._totals, 2 * padded)
    assert padded[:-2].sum() == sum(LENGTHS) * np.prod(choices[0].shape[1:])


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_packed_rows_are_recomputed_in_the_backward_pass(tmp_path: Path, kind: Recomputed) -> None:
    ids_BT, wanted_BT = a_batch()
    found = []
    for way in ("none", kind):
        model = loaded(tiny_models.nemotron_h, tmp_path)
        recompute(model, way)
        scores = Scorer(model, model, tokens=10**6)(ids_BT, wanted_BT)
        found.append((scores, gradients(model, weighed(scores))))
    recompute(model, "none")
    assert_equal(found[1][0], found[0][0])
    assert_equal_gradients(found[1][1], found[0][1])


def test_rows_of_like_lengths_stay_padded(tmp_path: Path) -> None:
    model = loaded(tiny_models.qwen3, tmp_path)
    scorer = Scorer(model, model, tokens=10**6)
    ids_BT = torch.tensor([tokens(20, seed=row) for row in range(4)])
    wanted_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    with passes(model) as seen:
        scorer(ids_BT, wanted_BT)
        wanted_BT[:, 10:] = False  # no token after these has a score
        scorer(ids_BT, wanted_BT)
    assert seen == [80, 40]


SHAPE = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}


@pytest.mark.parametrize(
    "config",
    [
        FalconConfig(**SHAPE, new_decoder_architecture=False),  # calls torch's attention itself
        RecurrentGemmaConfig(**SHAPE, intermediate_size=32, lru_width=32),  # its state runs on
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_mixes_packed_rows_runs_them_padded(config: FalconConfig | RecurrentGemmaConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).train()
    ids_BT, wanted_BT = a_batch()
    with passes(model) as seen:
        Scorer(model, model, tokens=10**6)(ids_BT, wanted_BT)
    assert seen[-1] == ids_BT.numel()


OPTIM = OptimConfig(learning_rate=1e-3, warmup_steps=0, eps=1e-4)
POLICY = LossConfig(kl_coefficient=0.05, entropy_bonus=0.01, error_guard=0.0)
LOSSES = {name: LossConfig(objective=name) for name in ("nll", "dpo", "distill")} | {"policy": POLICY}
STEPS = 3


def training_batch(objective: str) -> TrainBatch:
    """Answers of unlike lengths to different prompts, or pairs of them."""
    samples = [answer(tokens(5, seed=n), length, seed=n, group=None) for n, length in enumerate((90, 4, 30, 6, 3, 50))]
    if objective == "dpo":
        pairs = [Pair(chosen=one, rejected=other) for one, other in zip(samples[::2], samples[1::2], strict=True)]
        return build_pair_batch(pairs, ranks=1, micro_batch_tokens=LONGEST, pad_id=0)
    return build_batch(samples, ranks=1, micro_batch_tokens=LONGEST, pad_id=0)


def trained(rank: int, port: int, folder: str, zero_stage: ZeroStage) -> dict[str, list[dict[str, Any]]]:
    """Metrics, weights and records after steps of each objective, packed and padded."""
    learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=zero_stage))
    found: dict[str, list[dict[str, Any]]] = {}
    for objective, loss in LOSSES.items():
        for packs in (True, False):
            teacher = f"{folder}/teacher" if objective == "distill" else None
            learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS, teacher_dir=teacher)
            if loss.needs_reference:
                learner.load_reference()
            assert learner.engine is not None
            models: list[Any] = [one for one in (learner.engine, learner.reference) if one is not None]
            assert all(model.scorer.packs for model in models)
            for model in models:
                model.scorer.packs = packs
            with passes(learner.engine.model) as seen:
                share = training_batch(objective).share(0)
                metrics = [learner.train([share], loss=loss) for _ in range(STEPS)]
            result = {"metrics": metrics, "weights": weights_of(learner), "tokens": sum(seen)}
            found.setdefault(objective, []).append(result)
    learner.close()
    return found


@pytest.mark.parametrize("zero_stage", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_packed_rows_train_like_padded_ones(tmp_path: Path, zero_stage: ZeroStage) -> None:
    for seed, name in enumerate(("model", "teacher")):
        make_model(tmp_path / name, tiny_models.SMALL, seed=seed)
    (results,) = in_processes(trained, ranks=1, arguments=(str(tmp_path), zero_stage))
    assert set(results) == set(LOSSES)
    for packed, padded in results.values():
        assert packed["tokens"] < 0.6 * padded["tokens"]
        for found, expected in zip(packed["metrics"], padded["metrics"], strict=True):
            for name in expected.keys() - {"step_seconds", "tokens_per_s"}:
                assert found[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-4), name
        for name, tensor in padded["weights"].items():
            assert torch.allclose(packed["weights"][name], tensor, atol=2e-6), name
