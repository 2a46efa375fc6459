"""Starts vLLM's engine process on a CPU as a fork of this process, so that it shares the imports.

vLLM spawns it, and its second import of torch and vLLM takes longer than the load of a small model. GPU engines are still
spawned, because CUDA does not survive a fork.
"""

import contextlib
import ctypes
import gc
import os
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.context import ForkContext, ForkProcess

import torch
from torch._dynamo import config as dynamo
from vllm import envs
from vllm.v1.engine import utils

from temper.rollout.engines.vllm_settings import MMAP_THRESHOLD, ON_CPU

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1
OWN = 3
"""The first file descriptor after standard input, output and error."""


class CoreProcess(ForkProcess):
    """A fork that begins as a new program would, with what `vllm_settings` puts into the environment."""

    def start(self) -> None:
        """Fork in a new thread, because the child has only that one.

        A thread that has run parallel code would wait for its OpenMP threads, which a fork does not copy.
        """
        started: Future[None] = Future()

        def fork() -> None:
            try:
                ForkProcess.start(self)
                started.set_result(None)
            except Exception as error:
                started.set_exception(error)

        threading.Thread(target=fork).start()
        started.result()

    def run(self) -> None:
        gc.freeze()  # the parent's garbage, such as references of Ray, is the parent's to free
        _leave_connections()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        dynamo.disable = os.environ["TORCHDYNAMO_DISABLE"] == "1"
        _keep_freed()
        if (raylet := sys.modules.get("ray._raylet")) is not None:
            # vLLM can't set the title, because Ray has overwritten the arguments that it looks for.
            raylet.setproctitle(f"{envs.VLLM_PROCESS_NAME_PREFIX}::{self.name}")
        super().run()


def _leave_connections() -> None:
    """Replace the parent's sockets and locked folders, which would stay open after its end, by the null device.

    Their numbers stay in use, so an inherited object can't close a later file.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed
            mode = os.fstat(number).st_mode
            if number >= OWN and (stat.S_ISSOCK(mode) or stat.S_ISDIR(mode)):
                os.dup2(null, number, inheritable=False)


def _keep_freed() -> None:
    """Let malloc reuse freed memory: its environment variable is read only when a program starts."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, NEVER)


class _CoreContext(ForkContext):
    Process = CoreProcess


@contextlib.contextmanager
def forked_core() -> Iterator[None]:
    """Let an engine that is made in this block fork its process, on a CPU."""
    spawn = utils.get_mp_context
    if ON_CPU:
        utils.get_mp_context = _CoreContext
    try:
        yield
    finally:
        utils.get_mp_context = spawn
