"""The layer at which hidden states diverge, and the logprob diff that each layer type adds.

A *stream* is the hidden states of one sequence at the points between layers. One pass of the trainer's model in float32 finds
the error of each layer: the pass continues with the given stream behind every layer. So each layer starts with the input of
the compared layer, and their difference is the error of this layer alone. Another pass for each type finds the effect on
logprobs: the error is added to the layers of this type, and the other layers compute as usual.

Suffixes: `_P` token of the sequence but the last, `_PD` hidden size too, `_1PD` a batch of one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from temper.learner.models.layer_types import type_of_modules
from temper.orchestrator.tools.debug.parity.answers import ScoredAnswer, Stream, TracedAnswer
from temper.orchestrator.tools.debug.parity.trainer import Trainer, first_part, model_layers
from temper.rollout.engines.runners.layer_recorder import EMBEDDING, after_layer, inside_layer

OUTPUT = "output layer"
DIVERGES = 1e-5
"""Relative error above which hidden states have departed: float32 in another order of sums stays below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The mean relative error that one layer of a type adds (None for the output layer), and the mean nats of all of them."""

    error: float | None
    nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerType:
    """A layer type, its number of layers, and their effects under `prefill`, `decoding` or `learner`."""

    name: str
    layers: int
    added: Mapping[str, Added]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point between layers: its name and the type of the layer before it.

    `errors` are relative to the trainer as configured. `added` is the part of this one layer. Both are by pass.
    """

    name: str
    type: str
    errors: Mapping[str, float]
    added: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFindings:
    """Points in layer order, types by effect, and the point at which each pass first diverges, or None."""

    points: list[Point]
    types: list[LayerType]
    diverges_at: Mapping[str, str | None]


def compare_layers(trainer: Trainer, traced: TracedAnswer, *, bf16: bool) -> LayerFindings:
    """Compare the layers of an engine, by prefill and by decoding, with the trainer's layers.

    A trainer in bfloat16 is also compared with itself in float32, as `learner`. Errors are means over the positions before
    sampled tokens. Raise `ValueError` for a model with an unknown layer structure.
    """
    answer, first = traced.answer, len(traced.answer.prompt_ids) - 1
    streams = {"prefill": traced.prefill}
    if traced.decoding is not None:
        streams["decoding"] = traced.decoding
    own = trainer.stream(answer, bf16=bf16, points=list(traced.prefill))
    types = _types_of(trainer.model(bf16=False), own)
    errors = {
        way: {name: _relative(own[name], stream[name], first) for name in types} for way, stream in streams.items()
    }
    if bf16:
        streams["learner"] = own
    exact_P = trainer.run(answer, lambda _point, _hidden: None, bf16=False, points=())
    scores = {"prefill": answer.prefill_T, "decoding": answer.decoded_T}
    added: dict[str, dict[str, float]] = {}
    nats: dict[str, dict[str, float]] = {}
    for way, stream in streams.items():
        deltas, behind_P = _differences(trainer, answer, stream)
        added[way] = {name: _relative(stream[name] - deltas[name], stream[name], first) for name in types}
        nats[way] = {}
        for kind in dict.fromkeys(types.values()):
            moved_P = _moved(trainer, answer, {name: deltas[name] for name in types if types[name] == kind})
            nats[way][kind] = float(np.abs(moved_P - exact_P)[first:].mean())
        if way in scores:
            nats[way][OUTPUT] = float(np.abs(np.array(scores[way]) - behind_P[first:]).mean())
    points = [
        Point(
            name=name,
            type=kind,
            errors={way: errors[way][name] for way in errors},
            added={way: added[way][name] for way in added},
        )
        for name, kind in types.items()
    ]
    diverges_at = {way: next((name for name in types if found[name] > DIVERGES), None) for way, found in errors.items()}
    return LayerFindings(points=points, types=_types(points, nats), diverges_at=diverges_at)


def _types(points: Sequence[Point], nats: Mapping[str, Mapping[str, float]]) -> list[LayerType]:
    """Return the effects of the types, the largest first."""
    found = []
    for kind in [*dict.fromkeys(point.type for point in points), OUTPUT]:
        own = [point for point in points if point.type == kind]
        added = {
            way: Added(error=float(np.mean([point.added[way] for point in own])) if own else None, nats=shifts[kind])
            for way, shifts in nats.items()
            if kind in shifts
        }
        found.append(LayerType(name=kind, layers=len(own) or 1, added=added))
    return sorted(found, key=lambda one: -max((each.nats for each in one.added.values()), default=0.0))


def _relative(own_PD: NDArray[np.float32], other_PD: NDArray[np.float32], first: int) -> float:
    """Return the relative norm of the difference, mean over the positions from `first` on."""
    away_P = np.linalg.norm(own_PD[first:].astype(np.float64) - other_PD[first:], axis=-1)
    whole_P = np.linalg.norm(other_PD[first:].astype(np.float64), axis=-1)
    return float((away_P / np.maximum(whole_P, 1e-30)).mean())


def _differences(trainer: Trainer, answer: ScoredAnswer, stream: Stream) -> tuple[Stream, NDArray[np.float32]]:
    """Return the error that each layer adds to the stream at each point, and the logprobs of the exact output layer.

    The logprobs cover each id but the first, from the last point of the stream.
    """
    deltas: Stream = {}

    def put(point: str, hidden_1PD: torch.Tensor) -> torch.Tensor:
        deltas[point] = stream[point] - hidden_1PD[0, :-1].float().cpu().numpy()
        changed_1PD = hidden_1PD.clone()
        changed_1PD[0, :-1] = torch.from_numpy(stream[point]).to(hidden_1PD)
        return changed_1PD

    behind_P = trainer.run(answer, put, bf16=False, points=list(stream))
    return deltas, behind_P


def _moved(trainer: Trainer, answer: ScoredAnswer, deltas: Stream) -> NDArray[np.float32]:
    """Return the logprob of each id but the first with these differences added to the hidden states."""

    def add(point: str, hidden_1PD: torch.Tensor) -> torch.Tensor:
        changed_1PD = hidden_1PD.clone()
        changed_1PD[0, :-1] += torch.from_numpy(deltas[point]).to(hidden_1PD)
        return changed_1PD

    return trainer.run(answer, add, bf16=False, points=list(deltas))


def _types_of(model: PreTrainedModel, points: Mapping[str, object]) -> dict[str, str]:
    """Return the layer type before each point, in layer order."""
    found = {EMBEDDING: EMBEDDING}
    for number, layer in enumerate(model_layers(model)):
        if inside_layer(number) in points:
            first = first_part(layer)
            found[inside_layer(number)] = type_of_modules([first])
            found[after_layer(number)] = type_of_modules([child for child in layer.children() if child is not first])
        else:
            found[after_layer(number)] = type_of_modules([layer])
    return {name: kind for name, kind in found.items() if name in points}


def describe_error(point: Point) -> str:
    """Return a point for people: the layer before it, and its type."""
    return point.name if point.name == EMBEDDING else f"layer {point.name.partition('.')[0]} ({point.type})"
