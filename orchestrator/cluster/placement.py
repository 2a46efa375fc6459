"""Placement of a run on a cluster, and the shortage if it does not fit. Plain values, without Ray."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from temper.orchestrator.config.run_config import RunConfig


class NoRoomError(RuntimeError):
    """The cluster has no room for the processes of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster: its name in Ray, its address, its GPUs and the free ones."""

    name: str
    address: str
    gpus: float = 0
    free: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """The processes of a run: ranks of the learner, engines of `processes` processes each, and judges.

    Each process has a GPU, or, if `colocated`, a rank and an engine share one.
    """

    ranks: int = 0
    engines: int = 0
    processes: int = 1
    colocated: bool = False
    judges: int = 0

    def __post_init__(self) -> None:
        assert not self.colocated or self.processes == 1, "colocated engines have one process"

    def __bool__(self) -> bool:
        return self.ranks + self.engines > 0

    @property
    def gpus(self) -> int:
        """GPUs of ranks and engines."""
        if self.colocated:
            return max(self.ranks, self.engines)
        return self.ranks + self.engines * self.processes

    @property
    def all_gpus(self) -> int:
        return self.gpus + self.judges

    def fits(self, nodes: Sequence[Node]) -> bool:
        """Return whether the nodes suffice if nobody else uses them. Without GPUs any number of processes fits."""
        gpus = sum(one.gpus for one in nodes)
        engines = sum(one.gpus // self.processes for one in nodes)
        return not gpus or (gpus >= self.all_gpus and engines >= self.engines)

    def resolve_for(self, nodes: Sequence[Node]) -> "PlacementRequest":
        """Return the request for these nodes. One rank and one engine share a single GPU."""
        alone = sum(one.gpus for one in nodes) == 1 and (self.ranks, self.engines, self.processes) == (1, 1, 1)
        return replace(self, colocated=True) if alone else self

    def __str__(self) -> str:
        if self.colocated:
            judges = f", and {self.judges} for judges" if self.judges else ""
            return f"{_pluralise(self.gpus, 'GPU')}, each for a rank and an engine{judges}"
        each = f" with {self.processes} GPUs of one machine each" if self.processes > 1 else ""
        parts = [_pluralise(self.ranks, "rank")] * bool(self.ranks)
        parts += [_pluralise(self.engines, "engine") + each] * bool(self.engines)
        parts += [_pluralise(self.judges, "judge")] * bool(self.judges)
        return f"{_pluralise(self.all_gpus, 'GPU')}, for {' and '.join(parts)}"


def describe_shortage(request: PlacementRequest, nodes: Sequence[Node]) -> str:
    """Return a line with the request, the cluster's resources, and the remedies."""
    has = ", ".join(f"{one.free:g} of {one.gpus:g} free on {one.address}" for one in nodes if one.gpus)
    if not has:
        return f"Ray has no CPU left on the cluster's {_pluralise(len(nodes), 'node')}; free some, or add a node"
    remedies = ["free some"] * request.fits(nodes) + ["set placement=colocated rl.max_lag=0"] * _would_fit_colocated(
        request, nodes
    )
    lower = ["rollout.workers"] * bool(request.engines) + ["learner.ranks"] * bool(request.ranks)
    lower += ["rollout.engine.tensor_parallel"] * (request.processes > 1)
    remedies.append(f"lower {' or '.join(lower)}")
    remedies += ["set envs.NAME.judge.url to a server elsewhere"] * bool(request.judges)
    return f"the run needs {request}; the cluster has {has}; {', or '.join(remedies)}"


def _would_fit_colocated(request: PlacementRequest, nodes: Sequence[Node]) -> bool:
    """Return whether only colocated placement fits the GPUs."""
    both = request.ranks and request.engines and request.processes == 1
    return bool(both) and not request.fits(nodes) and replace(request, colocated=True).fits(nodes)


def order_bundles(nodes: Sequence[str], *, first: str) -> list[int]:
    """Return the bundle numbers grouped by node, with the bundles of node `first` first."""
    met = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
    return sorted(range(len(nodes)), key=lambda number: (nodes[number] != first, met[nodes[number]], number))


def _pluralise(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def build_request(config: RunConfig, *, trains: bool = True, plays: bool = True) -> PlacementRequest:
    return PlacementRequest(
        ranks=config.learner.ranks * trains,
        engines=config.rollout.workers * plays,
        processes=config.rollout.engine.processes,
        colocated=config.placement == "colocated",
        judges=len(config.judges) * plays,
    )
