"""Two checkpoints beside each other, tensor by tensor: the weights, and the optimiser's state.

A gradient is that which the optimiser was given, after clipping: Adam's first moment is m' = b m + (1 - b) g (Kingma and Ba,
"Adam: A Method for Stochastic Optimization", algorithm 1, 2015), and so is Muon's, so that g = (m' - b m) / (1 - b).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open

from temper.learner.engine.deepspeed_engine import ADAPTERS_FILE
from temper.learner.engine.optimizer_state import SHARDS
from temper.learner.models.layer_types import layer_of, types_of_tensors
from temper.learner.models.loading import file_names
from temper.learner.training_state import STATE_FOLDER
from temper.orchestrator.tools.debug.replay.training import Start

MASTER = "master/"
AS_IN_THE_FILE: Mapping[str, str] = MappingProxyType({})
MOMENTS = ("exp_avg/", "momentum_buffer/")
"""The running mean of the gradient, of Adam and of Muon."""


class Tensors:
    """The tensors of a checkpoint by name, read one at a time. `state` are those of its optimiser and the adapters, which the
    weights have merged, and `names` what weights are called there; what it does not have is called as in the file."""

    def __init__(self, weights: Mapping[str, Any], state: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._weights = weights
        self._state = state
        self._names = names

    @property
    def stored(self) -> dict[str, Any]:
        """All tensors with the file of each, those of the optimiser and the adapters as `optimiser/...`."""
        return {**self._weights, **{f"optimiser/{name}": file for name, file in self._state.items()}}

    @property
    def trained(self) -> dict[str, str]:
        """The weights as they are trained: where the optimiser keeps some in float32 beside those in bfloat16, these."""
        masters = {name.removeprefix(MASTER): name for name in self._state if name.startswith(MASTER)}
        return masters or {self._names.get(name, name): name for name in self._weights}

    def weight(self, name: str) -> torch.Tensor:
        """Return a weight as it is trained, in float64."""
        key = self.trained[name]
        return _read(self._state if key.startswith(MASTER) else self._weights, key).double()

    def moment(self, name: str) -> torch.Tensor | None:
        """Return the running mean of the gradient of a parameter, in float64; None where there is none."""
        key = next((kind + name for kind in MOMENTS if kind + name in self._state), None)
        return None if key is None else _read(self._state, key).double()

    @property
    def with_moment(self) -> list[str]:
        """The parameters that have one."""
        return [name.removeprefix(kind) for name in self._state for kind in MOMENTS if name.startswith(kind)]

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor of `stored`."""
        state = name.startswith("optimiser/")
        return _read(self._state if state else self._weights, name.removeprefix("optimiser/"))


def _read(files: Mapping[str, Any], name: str) -> torch.Tensor:
    found: torch.Tensor = files[name].get_tensor(name)
    return found


@contextmanager
def tensors_of(
    directory: Path, *, with_state: bool = True, names: Mapping[str, str] = AS_IN_THE_FILE
) -> Iterator[Tensors]:
    """Open a model, or a checkpoint with its optimiser's state. `names`: see `Tensors`.

    Raise `ValueError` where there are no weights.
    """
    with ExitStack() as stack:

        def opened(paths: Iterable[Path]) -> dict[str, Any]:
            files = [stack.enter_context(safe_open(path, framework="pt")) for path in sorted(paths)]
            return {name: file for file in files for name in file.keys()}  # noqa: SIM118 - not a mapping

        weights = opened(directory.glob("*.safetensors"))
        if not weights:
            raise ValueError(f"{directory} has no weights in safetensors")
        folder = directory / STATE_FOLDER
        states = [*folder.glob(SHARDS), *folder.glob(ADAPTERS_FILE)] if with_state else ()
        yield Tensors(weights, opened(states), names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """A tensor that is not the same in both: how many of its entries, and by how much at the most."""

    name: str
    layer: str
    type: str
    entries: int
    unequal: int
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Two checkpoints as they lie there: `tensors` were compared, the `unequal` ones differ in some bit."""

    tensors: int
    unequal: list[Unequal]


def stored_compared(one: Path, other: Path) -> Stored:
    """Compare what two checkpoints hold. A tensor that one of them lacks differs in all entries, by infinity."""
    with tensors_of(one) as mine, tensors_of(other) as theirs:
        names = sorted(mine.stored.keys() | theirs.stored.keys())
        kinds = types_of_tensors(dict.fromkeys(name.rpartition("/")[2] for name in names))
        found = [_unequal(name, mine, theirs, kinds) for name in names]
    return Stored(tensors=len(names), unequal=[one for one in found if one is not None])


def _unequal(name: str, mine: Tensors, theirs: Tensors, kinds: Mapping[str, str]) -> Unequal | None:
    parameter = name.rpartition("/")[2]
    layer, kind = layer_of(parameter), kinds.get(parameter, "other")
    if name not in mine.stored or name not in theirs.stored:
        there = (mine if name in mine.stored else theirs).read(name)
        count = there.numel()
        return Unequal(name=name, layer=layer, type=kind, entries=count, unequal=count, largest=math.inf)
    left, right = mine.read(name), theirs.read(name)
    if left.shape == right.shape and left.dtype == right.dtype and torch.equal(left, right):
        return None
    if left.shape != right.shape:
        return Unequal(name=name, layer=layer, type=kind, entries=left.numel(), unequal=left.numel(), largest=math.inf)
    unlike = (left != right) & ~(left.isnan() & right.isnan())
    gaps = (left.double() - right.double()).abs()[unlike]
    count, largest = int(unlike.sum()), float(gaps.nan_to_num(math.inf).max()) if len(gaps) else 0.0
    if not count and left.dtype == right.dtype:
        return None
    return Unequal(name=name, layer=layer, type=kind, entries=left.numel(), unequal=count, largest=largest)


@dataclass(slots=True, kw_only=True)
class Moved:
    """Sums of squares over some parameters, of a quantity of the one replay, of the other, and of their difference."""

    one: float = 0.0
    other: float = 0.0
    difference: float = 0.0
    product: float = 0.0

    def add(self, one: torch.Tensor, other: torch.Tensor) -> None:
        """Add the entries of a tensor of each."""
        self.one += float(one.square().sum())
        self.other += float(other.square().sum())
        self.difference += float((one - other).square().sum())
        self.product += float((one * other).sum())

    def as_json(self) -> dict[str, float | None]:
        """Return norms, the difference as a share of the first norm, and the cosine of the angle between both."""
        one, other, difference = (math.sqrt(value) for value in (self.one, self.other, self.difference))
        return {
            "recorded": one,
            "changed": other,
            "difference": difference,
            "relative": difference / one if one else None,
            "cosine": self.product / (one * other) if one and other else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effect of changed settings on a step, by layer type and by layer: on the weights' change, and on the gradient.

    `left_out` are parameters that one of the replays, or what both begin with, does not name. Gradients are there where a step
    makes one update.
    """

    weights: dict[str, Moved] = field(default_factory=dict)
    gradients: dict[str, Moved] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        tables = {"weights": self.weights, "gradients": self.gradients}
        return {name: {key: one.as_json() for key, one in table.items()} for name, table in tables.items()} | {
            "entries": self.entries,
            "left_out": self.left_out,
        }


def effects(before: Start, recorded: Path, changed: Path, *, decays: tuple[float, float] | None) -> Effects:
    """Return what a step did to what it began with, as recorded and as changed.

    `decays` are those of the gradient's running mean in each replay, None where a step makes several updates.
    """
    found, names = Effects(), file_names(recorded)
    began = tensors_of(before.model, with_state=before.has_state, names=names)
    with began as base, tensors_of(recorded, names=names) as one, tensors_of(changed, names=names) as other:
        both = [name for name in one.trained if name in other.trained and name in base.trained]
        found.left_out.extend(sorted((one.trained.keys() | other.trained.keys()) - set(both)))
        for name, kind in types_of_tensors(both).items():
            start = base.weight(name)
            _add(found.weights, name, kind, one.weight(name) - start, other.weight(name) - start)
            found.entries[kind] = found.entries.get(kind, 0) + start.numel()
        if decays is not None:
            counted = set(found.entries)
            for name, kind in types_of_tensors(one.with_moment).items():
                mine, theirs = one.moment(name), other.moment(name)
                if mine is not None and theirs is not None:
                    if kind not in counted:  # adapters, which the weights have merged
                        found.entries[kind] = found.entries.get(kind, 0) + mine.numel()
                    held = base.moment(name)
                    gradients = [
                        (moment - decay * (torch.zeros_like(moment) if held is None else held)) / (1 - decay)
                        for moment, decay in zip((mine, theirs), decays, strict=True)
                    ]
                    _add(found.gradients, name, kind, *gradients)
    return found


def _add(moved: dict[str, Moved], name: str, kind: str, one: torch.Tensor, other: torch.Tensor) -> None:
    """Add a tensor to the sums of its type and to those of its layer."""
    moved.setdefault(kind, Moved()).add(one, other)
    moved.setdefault(f"{layer_of(name)} ({kind})", Moved()).add(one, other)
