"""Starts vLLM's engine process without imports that no run calls.

It spawns the process, because the fork of a process with Ray's threads may hang.
"""

import contextlib
from collections.abc import Iterator
from multiprocessing.context import SpawnContext, SpawnProcess

import temper.rollout.deferred_imports  # noqa: F401


class CoreProcess(SpawnProcess):
    """A spawned process that imports this module before vLLM, because its class is unpickled first."""


class _CoreContext(SpawnContext):
    Process = CoreProcess


@contextlib.contextmanager
def light_core() -> Iterator[None]:
    """Let an engine that is made in this block spawn its process as a `CoreProcess`."""
    from vllm.v1.engine import utils  # the engine's process need not import it here

    spawn = utils.get_mp_context
    utils.get_mp_context = _CoreContext
    try:
        yield
    finally:
        utils.get_mp_context = spawn
