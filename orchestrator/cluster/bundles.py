"""Reserved resources of a run: placement groups of Ray, one bundle per process."""

import asyncio
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from temper.orchestrator.cluster.actors import run_on_node
from temper.orchestrator.cluster.placement import Node, NoRoomError, PlacementRequest, describe_shortage, order_bundles
from temper.orchestrator.cluster.transport_choice import ClusterFacts
from temper.orchestrator.loop.deadline import THREADS, in_thread

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

RESERVE_S = 5.0
"""Time for the processes of an earlier run to end, in seconds."""
GPU_QUERY_S = 10.0
"""Timeout for the cluster's GPU counts in a message, in seconds."""
RETRY_S = 0.5
"""Seconds between two checks after a machine is lost."""
SOME_CPU = 0.01
"""CPU share of a process in Ray's accounting without GPUs: near 0, since the settings limit its threads. A machine without
CPUs, such as a head-only node, gets no process."""
STORE = "object_store_memory"
"""Ray's name for the bytes of its object store on a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The reserved resources of one process, which requests a share of its GPUs."""

    group: PlacementGroup
    number: int
    gpus: float
    own: bool = False
    """Whether the group has only this bundle and ends with its process."""

    def options(self) -> dict[str, Any]:
        there = PlacementGroupSchedulingStrategy(self.group, self.number)
        return {"num_cpus": 0, "num_gpus": self.gpus, "scheduling_strategy": there}

    def free(self) -> None:
        """Release the group if it belongs to this process alone."""
        if self.own:
            remove_placement_group(self.group)


class Bundles:
    """The bundles of a run. After a machine is lost, Ray moves its bundles as soon as another one has room."""

    def __init__(self, request: PlacementRequest, *, on_gpus: bool) -> None:
        """Request the ranks' bundles on few machines, and if colocated the engines' too."""
        self._request = request
        self._on_gpus = on_gpus
        self._ranks: PlacementGroup | None = None
        self._engines: PlacementGroup | None = None
        self._judges: PlacementGroup | None = None
        packed = "PACK" if on_gpus else "SPREAD"  # spread, because processes of a machine share its cores
        if request.colocated:
            self._ranks = self._engines = _group(request.gpus, self._need(), strategy=packed)
        elif request.ranks:
            self._ranks = _group(request.ranks, self._need(), strategy=packed)

    @property
    def has_engines(self) -> bool:
        return self._request.engines > 0

    @property
    def gpus(self) -> int:
        """Number of GPUs of the processes, 0 if the cluster has none."""
        return self._on_gpus * self._request.gpus

    @property
    def colocated(self) -> bool:
        return self._request.colocated

    async def wait_until_placed(self) -> None:
        """Wait until all are reserved. The ranks come first, engines spread over the rest."""
        if self._ranks is not None:
            await self._ranks.ready()
        if self._engines is None and self._request.engines:
            self._engines = _group(self._request.engines, self._need(self._request.processes), strategy="SPREAD")
        if self._engines is not None:
            await self._engines.ready()
        if self._request.judges:
            self._judges = _group(self._request.judges, self._need(), strategy="PACK")
            await self._judges.ready()

    async def ranks(self) -> list[tuple[Bundle, Node]]:
        """Return the bundle and node of each rank, grouped by machine, the driver's machine first.

        Wait while a node does not answer, because a lost node may still be listed.
        """
        assert self._ranks is not None
        names = await _bundle_nodes(self._ranks)
        while not await _answer(set(names)):
            names = await _bundle_nodes(self._ranks)
        order = list(range(self._request.ranks))
        if not self._request.colocated:  # else a rank keeps the number of its engine
            order = order_bundles(names, first=ray.get_runtime_context().get_node_id())
        there = {node.name: node for node in cluster_nodes()}
        return [(self._bundle(self._ranks, number), there[names[number]]) for number in order]

    async def judges(self) -> list[tuple[Bundle, Node]]:
        """Return the bundle and node of each judge."""
        if self._judges is None:
            return []
        names, there = await _bundle_nodes(self._judges), {node.name: node for node in cluster_nodes()}
        gpus = 1 if self._on_gpus else 0
        return [(Bundle(group=self._judges, number=at, gpus=gpus), there[name]) for at, name in enumerate(names)]

    async def at_first_rank(self, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Run a plain function on rank 0's machine and return or raise its result. The caller sets the deadline."""
        _, node = (await self.ranks())[0]
        if node.name == ray.get_runtime_context().get_node_id():
            return await in_thread(function, *args)
        return await run_on_node(node.name, function, *args)

    def engine(self, number: int) -> Bundle:
        """Return the bundle of an engine. An engine beyond the initial ones gets a new bundle, which may have to wait."""
        if self._engines is None or number >= self._request.engines:
            added = _group(1, self._need(self._request.processes), strategy="PACK")
            return Bundle(group=added, number=0, gpus=self._request.processes if self._on_gpus else 0, own=True)
        return self._bundle(self._engines, number, self._request.processes)

    async def require_folder(self, folder: Path) -> None:
        """Raise `ValueError` if a machine of these bundles does not see this folder. The caller sets the deadline."""
        groups = [group for group in (self._ranks, self._engines, self._judges) if group is not None]
        used = {name for group in groups for name in await _bundle_nodes(group)} - {
            ray.get_runtime_context().get_node_id()
        }
        for node in cluster_nodes():
            if node.name in used and not await run_on_node(node.name, os.path.isdir, str(folder)):
                raise ValueError(
                    f"runs_dir: {folder} does not exist on {node.address}; use a folder that all machines share under the "
                    "same path"
                )

    def free(self) -> None:
        """Release all but the engines' separate bundles."""
        for group in {self._ranks, self._engines, self._judges} - {None}:
            remove_placement_group(group)

    def _bundle(self, group: PlacementGroup, number: int, processes: int = 1) -> Bundle:
        share = 0.5 if self._request.colocated else processes
        return Bundle(group=group, number=number, gpus=share if self._on_gpus else 0)

    def _need(self, gpus: int = 1) -> dict[str, float]:
        return {"GPU": float(gpus)} if self._on_gpus else {"CPU": SOME_CPU}


async def reserve(request: PlacementRequest) -> Bundles:
    """Reserve the requested resources. A single GPU is split between a rank and an engine.

    Raise `NoRoomError` at once if the cluster is too small, or after `RESERVE_S` seconds if others use it.
    """
    found = cluster_nodes()
    request = request.resolve_for(found)
    if not request.fits(found):
        raise NoRoomError(describe_shortage(request, found))
    bundles = Bundles(request, on_gpus=any(node.gpus for node in found))
    try:
        async with asyncio.timeout(RESERVE_S):
            await bundles.wait_until_placed()
    except BaseException as error:
        bundles.free()
        if isinstance(error, TimeoutError):
            await asyncio.sleep(RESERVE_S / 10)  # until released bundles count as free
            raise NoRoomError(describe_shortage(request, cluster_nodes())) from None
        raise
    return bundles


def _group(count: int, each: dict[str, float], *, strategy: str) -> PlacementGroup:
    return placement_group([dict(each) for _ in range(count)], strategy=strategy)


async def _bundle_nodes(group: PlacementGroup) -> list[str]:
    """Return the node of each bundle of a group, once all nodes are alive."""
    while True:
        await group.ready()
        found: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
        if set(found.values()) <= {node.name for node in cluster_nodes()}:
            return [found[number] for number in range(len(found))]
        await asyncio.sleep(RETRY_S)  # a machine is lost, and Ray has not moved its bundles yet


async def _answer(names: set[str]) -> bool:
    """Return whether all these nodes run functions. Wait a moment if one is lost."""
    others = names - {ray.get_runtime_context().get_node_id()}
    try:
        await asyncio.gather(*(run_on_node(name, platform.node) for name in others))
    except RuntimeError:
        await asyncio.sleep(RETRY_S)
        return False
    return True


def cluster_nodes() -> list[Node]:
    free = available_resources_per_node()
    return [
        Node(
            name=node["NodeID"],
            address=node["NodeManagerAddress"],
            gpus=node["Resources"].get("GPU", 0),
            free=free.get(node["NodeID"], {}).get("GPU", 0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def read_facts(*, gpus: int, colocated: bool, memory: int) -> ClusterFacts:
    """Return the facts of the cluster, of which the run's processes use `gpus` GPUs."""
    needed = "GPU" if gpus else "CPU"  # a machine without any, such as a head-only node, gets no process
    fit = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(needed)]
    return ClusterFacts(
        machines=len(fit),
        gpus=gpus,
        colocated=colocated,
        memory=memory,
        object_store=int(min(node["Resources"].get(STORE, 0) for node in fit)),
    )


def describe_used_gpus() -> str:
    """Return the number of used GPUs for a message; empty without GPUs or without an answer."""
    try:
        found = THREADS.submit(cluster_nodes).result(GPU_QUERY_S)
    except TimeoutError:
        return ""
    total, free = sum(one.gpus for one in found), sum(one.free for one in found)
    return f" ({total - free:g} of {total:g} GPUs are in use)" if total else ""
