"""What is done with actors of Ray, whatever they do: placing, asking and ending them."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar, TypeVarTuple

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from temper.envs.core.errors import describe_error
from temper.envs.core.process import NOTHING, Place, ProcessDied, show_stacks_on_signal
from temper.orchestrator.cluster.this_machine import LOOPBACK
from temper.orchestrator.loop.deadline import in_thread

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

CLOSE_S = 30.0
NO_GROUPS: Mapping[str, str] = {}
NODES_S = 30.0
PROCESS_FAILURES = (RayActorError, OutOfMemoryError, NodeDiedError)
"""What Ray raises where an actor's process has ended: it has an error of its own for one that it ends before memory is full."""


async def await_actor(call: Awaitable[Any], name: str, *, died: type[ProcessDied], cancels: bool = False) -> Any:
    """Return an actor's answer. Raise `died` with its name if its process has ended, or if it can't continue.

    Raise `RuntimeError` if its constructor failed, and `ProcessDied` if another process died that had to give it something.
    With `cancels`, cancelling the wait cancels the call in the actor too.
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
                f"{name} was given nothing by a process that died ({describe_error(error.cause)})"
            ) from error
        raise
    except PROCESS_FAILURES as error:
        if isinstance(error, RayActorError) and error.actor_init_failed:  # which it would again
            raise RuntimeError(f"{name} could not start ({' '.join(str(error).split())})") from error
        raise died(f"{name} died ({' '.join(str(error).split())})") from error


class ActorProcess:
    """An actor of Ray as a `Process`. Its death is raised as `died`, with its name."""

    def __init__(
        self,
        actor: Any,
        *,
        name: str,
        died: type[ProcessDied],
        groups: Mapping[str, str] = NO_GROUPS,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`groups` are the concurrency groups of methods that have one; `on_end` is called when it was ended from here."""
        self._actor, self._name, self._died = actor, name, died
        self._groups, self._on_end = groups, on_end
        self.place: Place | None = None

    async def wait_until_running(self) -> None:
        """See `Process.wait_until_running`. The process writes its stacks on a signal from then on."""
        pid, host, node = await self._await(self._actor.__ray_call__.remote(_locate_process))
        here = ray.get_runtime_context().get_node_id()
        self.place = Place(pid=pid, host=host, node=None if node == here else node)

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        return await self._await(self.begin(method, *args, named=named), cancels=cancels)

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Awaitable[Any]:
        """See `Process.begin`: return Ray's reference, in place of which another actor is given the answer itself."""
        bound = getattr(self._actor, method)
        if method in self._groups:
            bound = bound.options(concurrency_group=self._groups[method])
        reference: Awaitable[Any] = bound.remote(*args, **named)
        return reference

    async def put(self, data: object) -> object:
        """See `Process.put`: copy it into shared memory, beside the event loop."""
        return await in_thread(ray.put, data)

    async def host(self) -> str:
        """See `Process.host`: loopback if the cluster has no other machine for processes of the run."""
        if len(await list_nodes(hosts=True)) == 1:
            return LOOPBACK
        address: str = await self._await(self._actor.__ray_call__.remote(lambda _: ray.util.get_node_ip_address()))
        return address

    def kill(self) -> None:
        ray.kill(self._actor)
        self._on_end()

    async def close(self) -> None:
        """See `Process.close`: it may take `CLOSE_S` seconds."""
        closing = asyncio.gather(self._actor.close.remote(), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing, CLOSE_S)
        self.kill()

    async def _await(self, call: Awaitable[Any], *, cancels: bool = False) -> Any:
        return await await_actor(call, self._name, died=self._died, cancels=cancels)


async def list_nodes(*, hosts: bool = False) -> list[str]:
    """Return the ids of the living nodes; with `hosts` without those that offer no CPU and no GPU, such as a mere head.

    Raise `RuntimeError` if the cluster does not answer within `NODES_S` seconds.
    """
    try:
        nodes = await asyncio.wait_for(in_thread(ray.nodes), NODES_S)
    except TimeoutError:
        raise RuntimeError(f"the cluster did not name its nodes within {NODES_S:.0f} s") from None
    alive = [node for node in nodes if node["Alive"]]
    return [node["NodeID"] for node in alive if not hosts or any(node["Resources"].get(one) for one in ("CPU", "GPU"))]


def _locate_process(_actor: object) -> tuple[int, str, str]:
    show_stacks_on_signal()
    return os.getpid(), socket.gethostname(), ray.get_runtime_context().get_node_id()


async def run_at_place(place: Place, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function on the node of a process, that of the driver in a thread; return or raise its result.

    Raise `RuntimeError` if the cluster loses the node. The caller sets the deadline.
    """
    if place.node is None:
        return await in_thread(function, *args)
    return await run_on_node(place.node, function, *args)


async def run_on_node(node: str, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function in a process on a node; return its result. Raise `RuntimeError` with its error.

    The caller sets the deadline.
    """
    if node not in await list_nodes():
        raise RuntimeError(f"the cluster has lost node {node[:8]}")
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(function)
    try:
        result: T = await task.remote(*args)
    except RayError as error:
        raise RuntimeError(f"{function.__name__} could not run on node {node[:8]}: {error}") from error
    return result


@contextlib.contextmanager
def kill_on_failure(actors: list[Any]) -> Iterator[None]:
    """End the actors where the block fails or is given up: they hold memory and GPUs, and nobody else knows them yet."""
    try:
        yield
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
