"""vLLM's environment and arguments, for rollouts and the server.

Imports no vLLM: vLLM reads its environment at import.
"""

import os
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

ON_CPU = not torch.cuda.is_available()
KEEP_FREED = f"glibc.malloc.mmap_threshold={2**30}:glibc.malloc.trim_threshold={2**32}"
"""Lets malloc reuse freed memory, in processes that start with it."""


def prepare_environment(*, pushes: bool = False) -> None:
    """Set the variables that vLLM reads, unless they are set. Call it before the import of vLLM.

    `pushes`: the engine's weights are replaced while it runs.
    """
    if ON_CPU and pushes:
        # A push allocates as much memory as the model, layer by layer. Large blocks come from the system each time, at four
        # times the cost of the copy. The rest is released after a push.
        os.environ.setdefault("GLIBC_TUNABLES", KEEP_FREED)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # vLLM's routes import a library that sets the root logger's level. Its default, ERROR, would hide Temper's warnings.
    os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", os.environ.get("LOG_LEVEL", "WARNING"))
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault(
        "GLOO_SOCKET_IFNAME", "lo"
    )  # an engine is alone in its group, which need not listen elsewhere
    # In the machine's temporary folder: compiled code outlives the engine, whose own folder is removed.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    if ON_CPU:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # The worker shares the engine's process. A separate one starts later, and both spin on a core while they wait.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # Compiling the sampler's few kernels takes 40 s and gains nothing.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def limit_cpu(*, threads: int, memory_gib: int) -> None:
    """Set the threads and the cache size of the next CPU engine. Do nothing on a GPU."""
    if ON_CPU:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(memory_gib)


def engine_arguments(*, eager: bool = False, processes: int = 1) -> dict[str, Any]:
    """Return the arguments of every engine, by their names in vLLM's `AsyncEngineArgs`."""
    return {
        "enforce_eager": ON_CPU or eager,
        # On a CPU, vLLM can't undo a seeded request's random draw after half a prompt. So prompts stay whole.
        "enable_chunked_prefill": not ON_CPU,
        # vLLM's default inside a placement group is Ray, which supports one GPU per bundle only.
        "distributed_executor_backend": "uni" if processes == 1 else "mp",
        "mamba_ssm_cache_dtype": "float32",
        "trust_remote_code": False,
        "disable_log_stats": True,
    }
