"""What is done with actors of Ray, whatever they do: placing, asking and ending them."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, TypeVarTuple

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from temper.envs.core.errors import in_words
from temper.envs.core.member import Place, ProcessDied, show_stacks_on_signal
from temper.orchestrator.cluster.this_machine import LOOPBACK
from temper.orchestrator.loop.deadline import in_thread

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

CLOSE_S = 30.0
NODES_S = 30.0
DEATHS = (RayActorError, OutOfMemoryError, NodeDiedError)
"""What Ray raises where an actor's process has ended: it has an error of its own for one that it ends before memory is full."""


async def await_actor(call: Awaitable[Any], name: str, *, died: type[ProcessDied], cancels: bool = False) -> Any:
    """Return what an actor answers. Raises `died` with the actor's name where its process has ended, or where it says that
    it can't go on, `RuntimeError` where it has ended by what its constructor raised, and `ProcessDied` where another one
    died that should have made what this one was given.

    With `cancels` the call ends in the actor too where the wait for it is cancelled.
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
        if isinstance(error.cause, DEATHS):
            raise ProcessDied(f"{name} was given nothing by a process that died ({in_words(error.cause)})") from error
        raise
    except DEATHS as error:
        if isinstance(error, RayActorError) and error.actor_init_failed:  # which it would again
            raise RuntimeError(f"{name} could not start ({' '.join(str(error).split())})") from error
        raise died(f"{name} died ({' '.join(str(error).split())})") from error


async def close_actor(actor: Any) -> None:
    """Let an actor close what it holds, for `CLOSE_S` seconds at most, then end it."""
    closing = asyncio.gather(actor.close.remote(), return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closing, CLOSE_S)
    ray.kill(actor)


async def host_of(actor: Any) -> str:
    """Return the address at which other actors reach an actor's machine: loopback where the cluster has no other."""
    if len(await living_nodes()) == 1:
        return LOOPBACK
    address: str = await actor.__ray_call__.remote(lambda _actor: ray.util.get_node_ip_address())
    return address


async def living_nodes() -> list[str]:
    """Return the ids of the nodes that live. Raise `RuntimeError` if the cluster does not answer within `NODES_S` seconds."""
    try:
        nodes = await asyncio.wait_for(in_thread(ray.nodes), NODES_S)
    except TimeoutError:
        raise RuntimeError(f"the cluster did not name its nodes within {NODES_S:.0f} s") from None
    return [node["NodeID"] for node in nodes if node["Alive"]]


async def placed(actor: Any) -> Place:
    """Wait until an actor's process runs, which writes its stacks on a signal from then on; returns where it does."""
    pid, host, node = await actor.__ray_call__.remote(_introduce)
    return Place(pid=pid, host=host, node=None if node == ray.get_runtime_context().get_node_id() else node)


def _introduce(_actor: object) -> tuple[int, str, str]:
    show_stacks_on_signal()
    return os.getpid(), socket.gethostname(), ray.get_runtime_context().get_node_id()


async def at_place(place: Place, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function on the node of a process, that of the driver in a thread; return or raise what it does.

    Raise `RuntimeError` where the cluster has lost the node, or loses it. The caller sets the deadline.
    """
    if place.node is None:
        return await in_thread(function, *args)
    return await at_node(place.node, function, *args)


async def at_node(node: str, function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a plain function in a process on a node; return what it does.

    Raise `RuntimeError` with what it raises, or where the cluster has lost the node. The caller sets the deadline.
    """
    if node not in await living_nodes():
        raise RuntimeError(f"the cluster has lost node {node[:8]}")
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(function)
    try:
        result: T = await task.remote(*args)
    except RayError as error:
        raise RuntimeError(f"{function.__name__} could not run on node {node[:8]}: {error}") from error
    return result


@contextlib.contextmanager
def ended_on_failure(actors: list[Any]) -> Iterator[None]:
    """End the actors where the block fails or is given up: they hold memory and GPUs, and nobody else knows them yet."""
    try:
        yield
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
