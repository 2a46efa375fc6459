"""Actors of Ray: awaiting their results, running functions on nodes, and ending them."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from textwrap import shorten
from typing import Any, TypeVar, TypeVarTuple

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from temper.envs.core.errors import describe_error
from temper.envs.core.process import NOTHING, Place, ProcessDied, ResultLost, show_stacks_on_signal
from temper.orchestrator.cluster.this_machine import LOOPBACK
from temper.orchestrator.loop.deadline import in_thread

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

CLOSE_S = 30.0
NO_GROUPS: Mapping[str, str] = {}
NODES_S = 30.0
PROCESS_FAILURES = (RayActorError, OutOfMemoryError, NodeDiedError)
"""Ray's errors for a dead actor process. It has a separate one for processes that it kills before memory is full."""
SHOWN = 400
"""Characters of a death in a message. Ray adds pages of advice if memory is full."""


async def await_actor(call: Awaitable[Any], name: str, *, died: type[ProcessDied], cancels: bool = False) -> Any:
    """Return an actor's result. Raise `died` with its name if its process has ended or can't continue.

    Raise `RuntimeError` if its constructor failed, and `ProcessDied` if the process of an argument died. With `cancels`,
    cancelling the wait also cancels the call in the actor.
    """
    try:
        return await call
    except asyncio.CancelledError:
        if cancels:
            ray.cancel(call)
        raise
    except RayTaskError as error:
        if isinstance(error.cause, ProcessDied):
            raise died(f"{name}: {error.cause}") from error
        if isinstance(error.cause, PROCESS_FAILURES):
            raise ProcessDied(
                f"{name} lacks an argument from a process that died ({describe_error(error.cause)})"
            ) from error
        raise
    except PROCESS_FAILURES as error:
        if isinstance(error, RayActorError) and error.actor_init_failed:  # a retry would fail again
            raise RuntimeError(f"{name} could not start ({' '.join(str(error).split())})") from error
        raise died(f"{name} died ({shorten(str(error), SHOWN, placeholder=' ...')})") from error


class RayResult:
    """A result in Ray's shared memory, as a `StoredResult`."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    async def read(self) -> Any:
        """Return the result. Raise `ResultLost` if it is gone. The caller sets the deadline."""
        try:
            return await self._reference
        except (ObjectLostError, NodeDiedError) as error:
            raise ResultLost(shorten(str(error), SHOWN, placeholder=" ...")) from error


class ActorProcess:
    """An actor of Ray as a `Process`. If it dies, `died` is raised with its name."""

    def __init__(
        self,
        actor: Any,
        *,
        name: str,
        died: type[ProcessDied],
        groups: Mapping[str, str] = NO_GROUPS,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`groups` maps methods to concurrency groups. `on_end` runs when this process ends the actor."""
        self._actor, self._name, self._died = actor, name, died
        self._groups, self._on_end = groups, on_end
        self.place: Place | None = None

    async def wait_until_running(self) -> None:
        """See `Process.wait_until_running`. Afterwards the process writes its stacks on a signal."""
        pid, host, node = await self._await(self._actor.__ray_call__.remote(_locate_process))
        here = ray.get_runtime_context().get_node_id()
        self.place = Place(pid=pid, host=host, node=None if node == here else node)

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        return await self._await(self.begin(method, *args, named=named), cancels=cancels)

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Awaitable[Any]:
        """See `Process.begin`: return Ray's reference. Passed to another actor, it becomes the result."""
        bound = getattr(self._actor, method)
        if method in self._groups:
            bound = bound.options(concurrency_group=self._groups[method])
        reference: Awaitable[Any] = bound.remote(*args, **named)
        return reference

    async def call_stored(self, method: str, *args: object) -> tuple[Any, RayResult]:
        """See `Process.call_stored`. This process owns the results, so they outlive the actor, not its node."""
        first, second = getattr(self._actor, method).options(num_returns=2).remote(*args)
        return await self._await(first, cancels=True), RayResult(second)

    async def put(self, data: object) -> object:
        """See `Process.put`: copy the data into shared memory, in a thread."""
        return await in_thread(ray.put, data)

    async def host(self) -> str:
        """See `Process.host`: loopback if the run's processes have only one machine."""
        if len(await list_nodes(hosts=True)) == 1:
            return LOOPBACK
        address: str = await self._await(self._actor.__ray_call__.remote(lambda _: ray.util.get_node_ip_address()))
        return address

    def kill(self) -> None:
        ray.kill(self._actor)
        self._on_end()

    async def close(self) -> None:
        """See `Process.close`: waits at most `CLOSE_S` seconds."""
        closing = asyncio.gather(self._actor.close.remote(), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing, CLOSE_S)
        self.kill()

    async def _await(self, call: Awaitable[Any], *, cancels: bool = False) -> Any:
        return await await_actor(call, self._name, died=self._died, cancels=cancels)


async def list_nodes(*, hosts: bool = False) -> list[str]:
    """Return the ids of living nodes; with `hosts` only those with a CPU or a GPU, so no head-only node.

    Raise `RuntimeError` if the cluster does not answer within `NODES_S` seconds.
    """
    try:
        nodes = await asyncio.wait_for(in_thread(ray.nodes), NODES_S)
    except TimeoutError:
        raise RuntimeError(f"the cluster did not list its nodes within {NODES_S:.0f} s; check `ray status`") from None
    alive = [node for node in nodes if node["Alive"]]
    return [node["NodeID"] for node in alive if not hosts or any(node["Resources"].get(one) for one in ("CPU", "GPU"))]


def _locate_process(_actor: object) -> tuple[int, str, str]:
    show_stacks_on_signal()
    return os.getpid(), socket.gethostname(), ray.get_runtime_context().get_node_id()


async def run_at_place(place: Place, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function on the node of a process, on the driver's node in a thread and return or raise its result.

    Raise `RuntimeError` if the cluster loses the node. The caller sets the deadline.
    """
    if place.node is None:
        return await in_thread(function, *args)
    return await run_on_node(place.node, function, *args)


async def run_in_task(function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function as a task of Ray on the driver's node. Return its result or raise its error.

    Ray may run it twice. Raise `OSError` if both processes end. The caller sets the deadline, which ends the process.
    """
    task = to_task(function, ray.get_runtime_context().get_node_id(), retries=1).remote(*args)
    try:
        result: T = await task
    except asyncio.CancelledError:
        ray.cancel(task, force=True)
        raise
    except RayTaskError as error:
        raise error.cause from error
    except RayError as error:
        raise OSError(f"the process of {function.__name__} ended twice: {error}") from error
    return result


@cache
def to_task(function: Callable[..., T], node: str, *, retries: int = 0) -> Any:
    """Return a plain function as a task of Ray for one node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=retries, scheduling_strategy=there)(function)


async def run_on_node(node: str, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function in a process on a node and return its result. Raise `RuntimeError` with its error.

    The caller sets the deadline.
    """
    if node not in await list_nodes():
        raise RuntimeError(f"the cluster has lost node {node[:8]}")
    try:
        result: T = await to_task(function, node).remote(*args)
    except RayError as error:
        raise RuntimeError(f"{function.__name__} could not run on node {node[:8]}: {error}") from error
    return result


@contextlib.contextmanager
def kill_on_failure(actors: list[Any]) -> Iterator[None]:
    """Kill the actors if the block fails or is cancelled. They hold memory and GPUs, and no other code knows them yet."""
    try:
        yield
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
