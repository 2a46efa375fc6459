"""How vLLM runs here, for rollouts and for the server alike: its environment and the arguments of its engine.

Imports no vLLM: vLLM reads its environment while it is imported.
"""

import os
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

ON_CPU = not torch.cuda.is_available()
KEEP_FREED = f"glibc.malloc.mmap_threshold={2**30}:glibc.malloc.trim_threshold={2**32}"
"""Lets malloc use freed memory again, in processes that start with it."""


def prepare_environment(*, pushes: bool = False) -> None:
    """Set the variables that vLLM reads, where they are not set; to be called before vLLM is imported.

    `pushes` says whether the engine's weights will be replaced while it runs.
    """
    if ON_CPU and pushes:
        # A push goes through new memory as large as the model, layer by layer: taken from the system anew each time, as large
        # pieces are otherwise, it costs four times what copying into it does. What is left over is given back after a push.
        os.environ.setdefault("GLIBC_TUNABLES", KEEP_FREED)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault(
        "GLOO_SOCKET_IFNAME", "lo"
    )  # an engine is alone in its group, which need not listen elsewhere
    # Below the machine's temporary folder: what was compiled has to outlive the engine, whose own is removed.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    if ON_CPU:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # The worker shares the engine's process. As a process of its own it starts later, and the two spin on a core
        # while they wait for each other.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # Compiling the sampler's few kernels takes 40 s and gains nothing.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def limit_cpu(*, threads: int, memory_gib: int) -> None:
    """Set the threads of the next engine on a CPU, and the size of its key-value cache; nothing on a GPU."""
    if ON_CPU:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(memory_gib)


def engine_arguments(*, eager: bool = False, processes: int = 1) -> dict[str, Any]:
    """Return the arguments that every engine gets; their names are the fields of vLLM's `AsyncEngineArgs`.

    `processes` is how many compute its passes.
    """
    return {
        "enforce_eager": ON_CPU or eager,
        # vLLM can't take back a seeded request's random draw on a CPU after half a prompt: prompts stay whole.
        "enable_chunked_prefill": not ON_CPU,
        # Not vLLM's choice: inside a placement group that would be Ray, which takes one GPU a bundle alone.
        "distributed_executor_backend": "uni" if processes == 1 else "mp",
        "mamba_ssm_cache_dtype": "float32",
        "trust_remote_code": False,
        "disable_log_stats": True,
    }
