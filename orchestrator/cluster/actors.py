"""What is done with actors of Ray, whatever they do: placing, asking and ending them. With `cluster.py` the home of Ray."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError

from orchestrator.cluster.placement import Gpus, NoRoomError

CLOSE_S = 30.0
PLACE_CHECKS = 5
"""How often, a second apart, it is looked whether there are GPUs enough."""


class ProcessDied(RuntimeError):
    """A rollout worker or a rank of the learner ended by itself: out of memory, killed, or its machine is gone."""


async def together(call: Callable[[Any], Awaitable[Any]], actors: list[Any], who: str) -> list[Any]:
    """The same call to all actors at once; their answers in order."""
    return list(await asyncio.gather(*(answer(call(actor), f"{who} {n}") for n, actor in enumerate(actors))))


async def close_all(actors: list[Any]) -> None:
    """Let the actors close what they hold, for `CLOSE_S` seconds at most, then end them."""
    closing = asyncio.gather(*(actor.close.remote() for actor in actors), return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closing, CLOSE_S)
    for actor in actors:
        ray.kill(actor)


async def answer(call: Awaitable[Any], who: str) -> Any:
    """What an actor answers. Raises `ProcessDied` where its process has ended."""
    try:
        return await call
    except RayActorError as error:
        raise ProcessDied(
            f"{who} died; the same command continues the run from its last checkpoint ({' '.join(str(error).split())})"
        ) from error


async def gpu_share(actors: int, *, wanted: int) -> float:
    """The share of a GPU that each of so many actors asks for, of which `wanted` have to find room.

    Raises `NoRoomError` where they do not fit, after the seconds that the actors of a run before may take to go.
    """
    share = cluster_gpus().share(actors)
    for _ in range(PLACE_CHECKS):
        if not cluster_gpus().lacking(share * wanted):
            return share
        await asyncio.sleep(1.0)
    if lacking := cluster_gpus().lacking(share * wanted):
        raise NoRoomError(f"{lacking}; free some, or lower rollout.workers or learner.ranks")
    return share


def cluster_gpus() -> Gpus:
    """The GPUs of the cluster as they are now."""
    return Gpus(total=ray.cluster_resources().get("GPU", 0), free=ray.available_resources().get("GPU", 0))


def gpus_taken() -> str:
    """For a message on what was not placed: how many GPUs are taken; empty where the cluster has none."""
    gpus = cluster_gpus()
    return f" (of the GPUs {gpus.taken})" if gpus.total else ""


@contextlib.contextmanager
def ended_on_failure(actors: list[Any]) -> Iterator[None]:
    """End the actors where the block fails or is given up: they hold memory and GPUs, and nobody else knows them yet."""
    try:
        yield
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
