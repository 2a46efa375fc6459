"""Two checkpoints compared tensor by tensor: weights and optimizer state.

The gradient is the optimizer's input after clipping. The first moment of Adam (Kingma and Ba, "Adam: A Method for Stochastic
Optimization", algorithm 1, 2015) and of Muon is m' = b m + (1 - b) g, so g = (m' - b m) / (1 - b).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from temper.learner.engine.saved_state import ADAPTERS_FILE, SHARDS, SavedTensor, open_state, state_files
from temper.learner.models.layer_types import layer_of, types_of_tensors
from temper.learner.models.loading import map_file_names
from temper.learner.training_state import STATE_FOLDER
from temper.orchestrator.tools.debug.replay.training import Start
from temper.rollout.weights.own_files import own_files

OPTIMISER = "optimiser/"
"""Before the names of the optimiser's tensors and of the adapters, which the weights have merged."""
MASTER = "master/"
MOMENTS = ("exp_avg/", "momentum_buffer/")
"""The running mean of the gradient, of Adam and of Muon."""


class Tensors:
    """The tensors of a checkpoint, read one at a time.

    `files` has the saved tensors by name. `trained` maps parameters to the trained weights: the optimizer's float32 copy if
    it exists. `moments` has the running mean of each gradient.
    """

    def __init__(
        self, weights: Mapping[str, SavedTensor], state: Mapping[str, SavedTensor], names: Mapping[str, str]
    ) -> None:
        """`names` maps names in the file to parameters. Other names stay."""
        self.files = {**weights, **{OPTIMISER + name: file for name, file in state.items()}}
        masters = {name.removeprefix(MASTER): OPTIMISER + name for name in state if name.startswith(MASTER)}
        self.trained = masters or {names.get(name, name): name for name in weights}
        self.moments = {
            name.removeprefix(kind): OPTIMISER + name for name in state for kind in MOMENTS if name.startswith(kind)
        }

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor of `files`."""
        return self.files[name].join()

    def weight(self, parameter: str) -> torch.Tensor:
        """Return a weight as it is trained, in float64."""
        return self.read(self.trained[parameter]).double()

    def moment(self, parameter: str) -> torch.Tensor | None:
        """Return the running mean of a parameter's gradient in float64, or None."""
        return self.read(self.moments[parameter]).double() if parameter in self.moments else None


@contextmanager
def tensors_of(
    directory: Path, *, with_state: bool = True, names: Mapping[str, str] | None = None
) -> Iterator[Tensors]:
    """Open a model, or a checkpoint with its optimizer state.

    `names`: see `Tensors`. Raise `ValueError` if there are no weights.
    """
    with ExitStack() as stack:
        weights = open_state(own_files(directory, "*.safetensors"), stack)
        if not weights:
            raise ValueError(f"{directory} has no safetensors weights")
        folder = directory / STATE_FOLDER
        states = state_files(folder, SHARDS, ADAPTERS_FILE) if with_state else ()
        yield Tensors(weights, open_state(states, stack), names or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """A tensor that is not the same in both: how many of its entries, and the largest difference."""

    name: str
    layer: str
    type: str
    entries: int
    unequal: int
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Two stored checkpoints: the number of compared `tensors`, and the `unequal` ones."""

    tensors: int
    unequal: list[Unequal]


def compare_stored(one: Path, other: Path) -> Stored:
    """Compare two checkpoints. A tensor that one of them lacks counts as infinitely different."""
    with tensors_of(one) as mine, tensors_of(other) as theirs:
        names = sorted(mine.files.keys() | theirs.files.keys())
        types = types_of_tensors(dict.fromkeys(name.rpartition("/")[2] for name in names))
        found = [_unequal(name, mine, theirs, types) for name in names]
    return Stored(tensors=len(names), unequal=[one for one in found if one is not None])


def _unequal(name: str, mine: Tensors, theirs: Tensors, types: Mapping[str, str]) -> Unequal | None:
    parameter = name.rpartition("/")[2]
    found = [side.read(name) for side in (mine, theirs) if name in side.files]
    left, right = found[0], found[-1]
    count, largest = left.numel(), math.inf
    if len(found) == 2 and left.shape == right.shape:
        unlike = (left != right) & ~(left.isnan() & right.isnan())
        count = int(unlike.sum())
        if not count and left.dtype == right.dtype:
            return None
        gaps = (left.double() - right.double()).abs()[unlike].nan_to_num(math.inf)
        largest = float(gaps.max()) if count else 0.0
    return Unequal(
        name=name,
        layer=layer_of(parameter),
        type=types.get(parameter, "other"),
        entries=left.numel(),
        unequal=count,
        largest=largest,
    )


@dataclass(slots=True, kw_only=True)
class Moved:
    """Sums of squares over parameters: of a quantity in both replays, and of its difference."""

    one: float = 0.0
    other: float = 0.0
    difference: float = 0.0
    product: float = 0.0

    def add(self, one: torch.Tensor, other: torch.Tensor) -> None:
        """Add the entries of a tensor from both."""
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
    """The effect of changed settings on a step, by layer type and by layer: weight changes and gradients.

    `left_out` are parameters that a replay or the initial model does not have. Gradients exist if a step makes one update.
    """

    weights: dict[str, Moved] = field(default_factory=dict)
    gradients: dict[str, Moved] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {
            "weights": {key: one.as_json() for key, one in self.weights.items()},
            "gradients": {key: one.as_json() for key, one in self.gradients.items()},
            "entries": self.entries,
            "left_out": self.left_out,
        }


def effects(before: Start, recorded: Path, changed: Path, *, decays: tuple[float, float] | None) -> Effects:
    """Return the weight changes of a step, as recorded and as changed.

    `decays` belong to the gradient's running mean in each replay, None without gradients.
    """
    found, names = Effects(), map_file_names(recorded)
    began = tensors_of(before.model, with_state=before.has_state, names=names)
    with began as base, tensors_of(recorded, names=names) as one, tensors_of(changed, names=names) as other:
        both = [name for name in one.trained if name in other.trained and name in base.trained]
        found.left_out.extend(sorted((one.trained.keys() | other.trained.keys()) - set(both)))
        for name, kind in types_of_tensors(both).items():
            start = base.weight(name)
            _add(found.weights, name, kind, one.weight(name) - start, other.weight(name) - start)
            found.entries[kind] = found.entries.get(kind, 0) + start.numel()
        if decays is None:
            return found
        counted = set(found.entries)
        for name, kind in types_of_tensors(one.moments).items():
            mine, theirs, held = (tensors.moment(name) for tensors in (one, other, base))
            if mine is None or theirs is None:
                continue
            if kind not in counted:  # adapters, which the weights have merged
                found.entries[kind] = found.entries.get(kind, 0) + mine.numel()
            gradients = (
                (moment - decay * (0.0 if held is None else held)) / (1 - decay)
                for moment, decay in zip((mine, theirs), decays, strict=True)
            )
            _add(found.gradients, name, kind, *gradients)
    return found


def _add(moved: dict[str, Moved], name: str, kind: str, one: torch.Tensor, other: torch.Tensor) -> None:
    """Add a tensor to the sums of its type and layer."""
    moved.setdefault(kind, Moved()).add(one, other)
    moved.setdefault(f"{layer_of(name)} ({kind})", Moved()).add(one, other)
