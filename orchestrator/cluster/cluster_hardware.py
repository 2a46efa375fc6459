"""The hardware of all machines of a cluster. Each one runs a task that reads its own."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import ray

from temper.orchestrator.cluster.actors import to_task
from temper.orchestrator.cluster.hardware import this_machine
from temper.orchestrator.cluster.machines import Hardware, Machine
from temper.orchestrator.cluster.ray_cluster import start_ray, stop_ray

MACHINES_S = 240.0
"""Timeout for the machines of a cluster. Each starts a process, over a minute on a busy machine."""


def query_cluster() -> Hardware:
    """Return the hardware of the cluster of RAY_ADDRESS. Raise `TimeoutError` if a machine does not answer."""
    with join_cluster():
        nodes = [node for node in ray.nodes() if node["Alive"]]
        calls = [to_task(this_machine, node["NodeID"], retries=1).remote() for node in nodes]
        done, late = ray.wait(calls, num_returns=len(calls), timeout=MACHINES_S)
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(nodes)} machines of the cluster did not answer within {MACHINES_S:.0f} s; "
                "check `ray status`"
            )
        found: list[Machine] = ray.get(done)
        counts = {calls[at]: int(node["Resources"].get("GPU", 0)) for at, node in enumerate(nodes)}
    return Hardware(machines=tuple(limit_gpus(one, counts[call]) for one, call in zip(found, done, strict=True)))


@contextlib.contextmanager
def join_cluster() -> Iterator[None]:
    """Join the cluster for the block. Leave it afterwards unless it was joined before."""
    before = ray.is_initialized()
    start_ray(slots=1, min_sandbox_level=0)
    try:
        yield
    finally:
        if not before:
            stop_ray()


def limit_gpus(machine: Machine, count: int) -> Machine:
    """Return a machine with the GPUs that Ray may use, none if its torch can't use them."""
    return replace(machine, gpus=count if machine.gpu_gib else 0)
