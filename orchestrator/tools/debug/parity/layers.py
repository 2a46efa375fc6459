"""Where hidden states part, and how much of the gap each type of layer adds.

A *stream* is the hidden states of one sequence at the points between layers. What a layer adds is found in one pass of the
trainer's model in float32 that gets, behind every layer, the stream that is looked at in place of its own: each layer then
begins with what the layer that it is compared with began with, so that its output differs by what that one layer computed
otherwise, and by nothing that came before. What that does to log-probabilities is found in a pass for each type, in which the
layers of that type have this difference added and the others compute on.

Suffixes: `_P` token of the sequence but the last, `_PD` hidden size too, `_1PD` a batch of one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from temper.learner.models.layer_types import type_of_modules
from temper.orchestrator.tools.debug.parity.answers import ScoredAnswer, Stream, Watched
from temper.orchestrator.tools.debug.parity.trainer import Trainer, first_part
from temper.rollout.engines.runners.layer_recorder import EMBEDDING, after_layer, inside_layer, layers_of

OUTPUT = "output layer"
DEPARTS = 1e-5
"""Relative error above which hidden states have departed: float32 in another order of sums stays below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What the layers of one type add: the mean relative error of one, and the mean difference in nats by all of them.

    The output layer has no hidden states behind it, so that there is no such error.
    """

    error: float | None
    nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerType:
    """A type of layers, how many there are, and what they add by the way that was looked at."""

    name: str
    layers: int
    added: Mapping[str, Added]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point between layers: its name, the type of the layer before it, and there the error against the trainer as it is
    configured, and what this one layer added to it, both relative, by the way that was looked at.
    """

    name: str
    type: str
    errors: Mapping[str, float]
    added: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFindings:
    """Points in the order of passes, types by what they add, and where each way first departs, None where it nowhere does."""

    points: list[Point]
    types: list[LayerType]
    departs: Mapping[str, str | None]


def compare_layers(trainer: Trainer, watched: Watched, *, bf16: bool) -> LayerFindings:
    """Compare the layers of an engine, by prefill and by decoding, with those of the trainer; and those of a trainer in
    bfloat16 with themselves in float32, as the way `learner`.

    Errors are means over the positions before sampled tokens. Raise `ValueError` for a model whose layers have no known form.
    """
    names = list(watched.prefill)
    answer, first = watched.answer, len(watched.answer.prompt_ids) - 1
    streams = {"prefill": watched.prefill} | ({} if watched.decoding is None else {"decoding": watched.decoding})
    own = trainer.stream(answer, bf16=bf16, points=names)
    names = in_order(own)
    errors = {
        way: {name: relative(own[name], stream[name], first) for name in names} for way, stream in streams.items()
    }
    if bf16:
        streams["learner"] = own
    kinds = types_of(trainer.model(bf16=False), names)
    exact_P = trainer.run(answer, lambda _point, _hidden: None, bf16=False, points=names)
    scores = {"prefill": answer.prefill_T, "decoding": answer.decoded_T}
    added: dict[str, dict[str, float]] = {}
    nats: dict[str, dict[str, float]] = {}
    for way, stream in streams.items():
        deltas, behind_P = differences(trainer, answer, stream)
        added[way] = {name: relative(stream[name] - deltas[name], stream[name], first) for name in names}
        nats[way] = {
            kind: _shift(trainer, answer, {name: deltas[name] for name in names if kinds[name] == kind}, exact_P, first)
            for kind in dict.fromkeys(kinds.values())
        }
        if way in scores:
            nats[way][OUTPUT] = float(np.abs(np.array(scores[way]) - behind_P[first:]).mean())
    points = [
        Point(
            name=name,
            type=kinds[name],
            errors={way: errors[way][name] for way in errors},
            added={way: added[way][name] for way in added},
        )
        for name in names
    ]
    departs = {way: next((name for name in names if found[name] > DEPARTS), None) for way, found in errors.items()}
    return LayerFindings(points=points, types=_types(points, nats), departs=departs)


def _types(points: Sequence[Point], nats: Mapping[str, Mapping[str, float]]) -> list[LayerType]:
    """Return what the types add, the one first that adds most by any way."""
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


def in_order(stream: Stream) -> list[str]:
    """Return the points of a stream as a pass meets them."""

    def place(name: str) -> tuple[int, bool]:
        number = name.partition(".")[0]
        return (-1, True) if name == EMBEDDING else (int(number), name == number)

    return sorted(stream, key=place)


def relative(own_PD: NDArray[np.float32], other_PD: NDArray[np.float32], first: int) -> float:
    """Return the norm of the difference over that of the other, mean over the positions from `first` on."""
    away_P = np.linalg.norm(own_PD[first:].astype(np.float64) - other_PD[first:], axis=-1)
    whole_P = np.linalg.norm(other_PD[first:].astype(np.float64), axis=-1)
    return float((away_P / np.maximum(whole_P, 1e-30)).mean())


def differences(trainer: Trainer, answer: ScoredAnswer, stream: Stream) -> tuple[Stream, NDArray[np.float32]]:
    """Return by how much each layer behind the stream differs from the exact one that begins alike, and the
    log-probability of each id but the first by the exact output layer behind the stream's last point.
    """
    deltas: Stream = {}

    def put(point: str, hidden_1PD: torch.Tensor) -> torch.Tensor:
        given_PD = stream[point]
        own_PD = hidden_1PD[0, :-1].float().cpu().numpy()
        deltas[point] = given_PD - own_PD
        changed_1PD = hidden_1PD.clone()
        changed_1PD[0, :-1] = torch.from_numpy(given_PD).to(hidden_1PD)
        return changed_1PD

    behind_P = trainer.run(answer, put, bf16=False, points=list(stream))
    return deltas, behind_P


def _shift(trainer: Trainer, answer: ScoredAnswer, deltas: Stream, exact_P: NDArray[np.float32], first: int) -> float:
    """Return how far the log-probabilities of the answer move where these differences are added, in nats, in the mean."""

    def add(point: str, hidden_1PD: torch.Tensor) -> torch.Tensor | None:
        if point not in deltas:
            return None
        changed_1PD = hidden_1PD.clone()
        changed_1PD[0, :-1] += torch.from_numpy(deltas[point]).to(hidden_1PD)
        return changed_1PD

    moved_P = trainer.run(answer, add, bf16=False, points=list(deltas))
    return float(np.abs(moved_P - exact_P)[first:].mean())


def types_of(model: PreTrainedModel, points: Sequence[str]) -> dict[str, str]:
    """Return the type of the layer, or of the part of one, that stands before each point."""
    layers = layers_of(model, count=model.config.get_text_config(decoder=True).num_hidden_layers)
    found = {EMBEDDING: EMBEDDING}
    for number, layer in enumerate(layers):
        if inside_layer(number) in points:
            first = first_part(layer)
            found[inside_layer(number)] = type_of_modules([first])
            found[after_layer(number)] = type_of_modules([child for child in layer.children() if child is not first])
        else:
            found[after_layer(number)] = type_of_modules([layer])
    return found


def in_words(point: Point | str, kinds: Mapping[str, str]) -> str:
    """Return a point for people: the layer before it, and its type."""
    name = point.name if isinstance(point, Point) else point
    if name == EMBEDDING:
        return name
    return f"layer {name.partition('.')[0]} ({kinds[name]})"
