"""Recorded expert choices against experts forced by hand, and the load of experts, on models in this process."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_models
from support.refusals import refuses
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from unit.learner.models.test_shared_prompt import gradients, loaded, tokens

from temper.learner.batches.micro_batches import MicroBatch, build_batch
from temper.learner.batches.pass_experts import PassExperts, PassRow, join_choices
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig
from temper.learner.models.experts import (
    ExpertReplay,
    find_routers,
    load_entropy,
    load_max,
    prepare_routers,
    sigmoid_router_weights,
    softmax_router_weights,
    unused_share,
)
from temper.learner.models.loading import recompute
from temper.learner.models.shared_prompt import causal_logits
from temper.rollout.expert_choices import Choices
from temper.rollout.token_arrays import as_floats, as_ids, as_marks, tokens_of

MAKERS = [tiny_models.nemotron_h_moe, tiny_models.qwen3_moe]
LAYERS, EXPERTS, CHOSEN = 2, 8, 2
GROUPS = ((60, (20, 9, 14, 3)), (52, (16, 5, 7)))
"""Prompts of so many tokens, and the lengths of their answers."""


def test_the_load_of_two_layers_by_hand():
    counts_LE = torch.tensor([[4.0, 4.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    assert load_max(counts_LE) == 2.0  # half of the choices of the first layer, times 4 experts
    assert unused_share(counts_LE) == 0.25
    assert load_entropy(counts_LE) == pytest.approx((math.log(2) / math.log(4) + 1) / 2)
    single = torch.tensor([[0.0, 7.0, 0.0, 0.0]])
    assert (load_max(single), unused_share(single), load_entropy(single)) == (4.0, 0.75, 0.0)


def test_a_layer_that_saw_no_token_has_no_load():
    nothing = torch.zeros(1, 4)
    assert (load_max(nothing), unused_share(nothing), load_entropy(nothing)) == (0.0, 1.0, 0.0)


def test_the_weights_of_chosen_experts_by_hand():
    logits_NE, choices_NK = torch.tensor([[0.0, math.log(3), -50.0]]), torch.tensor([[1, 0]])
    assert sigmoid_router_weights(logits_NE, choices_NK, normalised=True, scale=2.0).tolist() == [
        pytest.approx([2 * 0.75 / 1.25, 2 * 0.5 / 1.25])
    ]
    assert sigmoid_router_weights(logits_NE, choices_NK, normalised=False, scale=1.0).tolist() == [
        pytest.approx([0.75, 0.5])
    ]
    assert softmax_router_weights(logits_NE, choices_NK, normalised=False).tolist() == [pytest.approx([0.75, 0.25])]
    lone = torch.tensor([[0]])
    assert softmax_router_weights(logits_NE, lone, normalised=True).tolist() == [[1.0]]


def test_rows_of_a_pass_are_padded_without_choices():
    choices = np.arange(8, dtype=np.int16).reshape(2, LAYERS, CHOSEN)
    rows = [PassRow(length=2, samples=3, experts_TLK=choices), PassRow(length=3, samples=1, experts_TLK=None)]
    right, left = PassExperts.pad(rows), PassExperts.pad(rows, left=True)
    assert right.samples_BT.tolist() == [[3, 3, 0], [1, 1, 1]]
    assert left.samples_BT.tolist() == [[0, 3, 3], [1, 1, 1]]
    assert right.experts_BTLK is not None
    assert right.experts_BTLK[0].tolist() == [*choices.tolist(), [[-1, -1], [-1, -1]]]
    assert (right.experts_BTLK[1] == -1).all()
    assert PassExperts.pad(rows[1:]).experts_BTLK is None


def test_choices_of_parts_follow_each_other_and_must_be_alike():
    choices = np.ones((2, LAYERS, CHOSEN), dtype=np.int16)
    both = join_choices([(2, choices), (1, None)])
    assert both is not None
    assert both[:, 0, 0].tolist() == [1, 1, -1]
    assert join_choices([(2, None)]) is None
    with pytest.raises(ValueError, match=r"differ .*\[\(1, 2\), \(2, 2\)\]"):
        join_choices([(2, choices), (2, choices[:, :1])])
    with refuses("experts", 2, 3):
        TrainingSample(
            ids=as_ids((1, 2, 3)),
            trained_T=as_marks((False,) * 3),
            advantages_T=as_floats((0.0,) * 3),
            behaviour_T=as_floats((0.0,) * 3),
            experts=choices,
        )


def test_a_model_without_experts_refuses_the_switches(tmp_path):
    dense = loaded(tiny_models.qwen3, tmp_path)
    prepare_routers(dense, LearnerConfig())
    for config, switch in (
        (LearnerConfig(router_replay=True), "router_replay=true"),
        (LearnerConfig(train_router=False), "train_router=false"),
    ):
        with refuses(f"learner.{switch}", "qwen3"):
            prepare_routers(dense, config)


class Forced(nn.Module):
    """An expert layer computed token by token, its experts given: nothing of transformers but the weights."""

    def __init__(self, layer: nn.Module, choices_TK: np.ndarray) -> None:
        super().__init__()
        self.layer: Any = layer
        self.choices_TK = choices_TK

    def forward(self, hidden_1TH: torch.Tensor) -> torch.Tensor:
        gate, experts = self.layer.gate, self.layer.experts
        outputs = []
        for x, chosen in zip(hidden_1TH[0], self.choices_TK.tolist(), strict=True):
            logits = gate.weight @ x
            if hasattr(self.layer, "shared_experts"):
                scores = [torch.sigmoid(logits[e]) for e in chosen]
                parts = [experts.down_proj[e] @ functional.relu(experts.up_proj[e] @ x).square() for e in chosen]
                shared = self.layer.shared_experts
                rest = shared.down_proj.weight @ functional.relu(shared.up_proj.weight @ x).square()
            else:
                scores = [torch.exp(logits[e]) for e in chosen]
                halves = [(experts.gate_up_proj[e] @ x).split(experts.down_proj.shape[-1]) for e in chosen]
                parts = [
                    experts.down_proj[e] @ (functional.silu(first) * second)
                    for e, (first, second) in zip(chosen, halves, strict=True)
                ]
                rest = torch.zeros_like(x)
            outputs.append(rest + sum(s / sum(scores) * part for s, part in zip(scores, parts, strict=True)))
        return torch.stack(outputs)[None]


def forced_logits(model: PreTrainedModel, ids: tuple[int, ...], choices: Choices) -> torch.Tensor:
    """The logits of one sequence with hand-set experts. Gradients reach the model's parameters."""
    place = "mixer" if model.config.model_type == "nemotron_h" else "mlp"
    layers = [block for block in model.model.layers if hasattr(getattr(block, place), "gate")]
    layers = [block for block in layers if hasattr(getattr(block, place), "experts")]
    originals = [getattr(block, place) for block in layers]
    for number, (block, original) in enumerate(zip(layers, originals, strict=True)):
        setattr(block, place, Forced(original, choices[:, number]))
    logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    for block, original in zip(layers, originals, strict=True):
        setattr(block, place, original)
    return logits


def recorded(model: PreTrainedModel, ids: tuple[int, ...]) -> Choices:
    """The experts that a model chooses, as an engine would record them: none for the last id."""
    seen: list[torch.Tensor] = []
    hooks = [
        router.module.register_forward_hook(lambda _, __, output: seen.append(output[2]))
        for router in find_routers(model)
    ]
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    choices = torch.stack(seen, dim=1).numpy().astype(np.int16)
    choices[-1] = -1
    return choices


def perturbed(model: PreTrainedModel, *, scale: float) -> PreTrainedModel:
    """A copy whose weights are moved by `scale` times their own size, the routers' by twice that."""
    moved = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            much = 2 * scale if "gate.weight" in name else scale
            parameter += much * parameter.std().nan_to_num() * torch.randn_like(parameter)
    return moved


def answers(model: PreTrainedModel) -> list[TrainingSample]:
    """Groups of answers, with the choices of this model."""
    sequences = []
    for group, (length, longs) in enumerate(GROUPS):
        prompt = tokens(length, seed=group)
        for long in longs:
            ids = (*prompt, *tokens(long, seed=long))
            sequences.append(
                TrainingSample(
                    ids=as_ids(ids),
                    trained_T=as_marks((False,) * length + (True,) * long),
                    advantages_T=as_floats((1.0,) * len(ids)),
                    behaviour_T=as_floats((-5.0,) * len(ids)),
                    group=group,
                    experts=recorded(model, ids),
                )
            )
    return sequences


def micro_batch(sequences: list[TrainingSample], *, shared: bool) -> MicroBatch:
    batch = build_batch(sequences, ranks=1, micro_batch_tokens=10**6, pad_id=0, shared_prompts=shared)
    (only,) = batch.micro_batches[0]
    assert (only.prompts is not None) == shared
    return only


def answer_logits(model: PreTrainedModel, only: MicroBatch, sequences: list[TrainingSample]) -> list[torch.Tensor]:
    """The logits of the positions that predict the answer of each sequence."""
    logits_BTV = causal_logits(model, model.config, torch.from_numpy(only.ids_BT), only.prompts)
    rows = []
    for sequence in sequences:
        prompt = sequence.first_trained
        start, count = 0 if only.prompts is not None else prompt - 1, len(sequence.ids) - prompt
        said = only.ids_BT[:, start + 1 : start + 1 + count].tolist()
        rows.append(logits_BTV[said.index(list(sequence.ids[prompt:])), start : start + count])
    return rows


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


@pytest.mark.parametrize(
    ("shared", "recomputed"),
    [(False, False), (True, False), (True, True)],
    ids=["whole", "shared_prompt", "recomputed"],
)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_replayed_choices_equal_experts_forced_by_hand(
    tmp_path: Path, make: Callable[[Path], Path], shared: bool, recomputed: bool
):
    before = loaded(make, tmp_path)
    sequences = answers(before)
    after = perturbed(before, scale=0.3)
    expected = []
    for sequence in sequences:
        assert sequence.experts is not None
        own = recorded(after, tokens_of(sequence.ids))
        assert (own != sequence.experts).any(-1).mean() > 0.2  # the weights have moved far
        choices = sequence.experts.copy()
        choices[-1] = 0, 1  # whatever: it predicts nothing
        expected.append(forced_logits(after, tokens_of(sequence.ids), choices)[sequence.first_trained - 1 : -1])
    draws = [torch.randn(row.shape, generator=torch.Generator().manual_seed(len(row))) for row in expected]

    def whole(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([(draw * row).sum() for draw, row in zip(draws, rows, strict=True)]).sum()

    by_hand = gradients(after, whole(expected))
    only = micro_batch(sequences, shared=shared)
    free = answer_logits(after, only, sequences)
    if recomputed:
        recompute(after.train(), "full")
    replay = ExpertReplay(after, replay=True, device=torch.device("cpu"))
    replay.queue_passes(only.experts)
    found = answer_logits(after, only, sequences)
    assert max(gap(a, b) for a, b in zip(free, expected, strict=True)) > 1e-2  # routed freely it is another model
    assert max(gap(a, b) for a, b in zip(found, expected, strict=True)) < 1e-5
    replayed = gradients(after, whole(found))
    assert set(replayed) == set(by_hand)
    for name, gradient in by_hand.items():
        assert float((replayed[name] - gradient).norm()) <= 1e-4 * float(gradient.norm()) + 1e-7, name
    assert all(float(replayed[name].norm()) > 0 for name in replayed if "gate.weight" in name)


@pytest.mark.parametrize("shared", [False, True], ids=["whole", "shared_prompt"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_replaying_the_models_own_choices_changes_nothing(tmp_path: Path, make: Callable[[Path], Path], shared: bool):
    model = loaded(make, tmp_path)
    sequences = answers(model)
    only = micro_batch(sequences, shared=shared)
    replay = ExpertReplay(model, replay=True, device=torch.device("cpu"))
    with torch.no_grad():
        free = answer_logits(model, only, sequences)
        replay.queue_passes(only.experts)
        found = answer_logits(model, only, sequences)
        again = answer_logits(model, only, sequences)  # no pass is announced any more
    assert max(gap(a, b) for a, b in zip(free, found, strict=True)) < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(free, again, strict=True))


def test_tokens_without_a_recorded_choice_route_freely(tmp_path: Path):
    before = loaded(tiny_models.nemotron_h_moe, tmp_path)
    after = perturbed(before, scale=0.3)
    ids = tuple(tokens(12, seed=3))
    choices = recorded(before, ids)
    choices[:6] = -1
    replay = ExpertReplay(after, replay=True, device=torch.device("cpu"))
    with torch.no_grad():
        free = after(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        replay.queue_passes([PassExperts.from_uncounted(choices, length=12)])
        mixed = after(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert gap(free[:6], mixed[:6]) < 1e-6
    assert gap(free[6:], mixed[6:]) > 1e-3


def test_choices_for_another_number_of_layers_are_refused(tmp_path: Path):
    model = loaded(tiny_models.nemotron_h_moe, tmp_path)
    replay = ExpertReplay(model, replay=True, device=torch.device("cpu"))
    replay.queue_passes([PassExperts.from_uncounted(np.zeros((4, 3, CHOSEN), dtype=np.int16), length=4)])
    with pytest.raises(ValueError, match="3 layers, .* 2;"):
        model(input_ids=torch.tensor([[1, 2, 3, 4]]))
