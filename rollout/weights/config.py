"""Names of the transports of a weight push and of the types of its weights, as settings give them."""

from typing import Literal

WireDtype = Literal["float32", "bfloat16", "float16"]
"""Types in which weights are sent."""
SHARED_MEMORY, BROADCAST, CUDA_IPC = "shared_memory", "broadcast", "cuda_ipc"
TRANSPORTS = (SHARED_MEMORY, BROADCAST, CUDA_IPC)
AUTO = "auto"
"""Leaves the choice to the run, which knows the cluster. Without a run it is `SHARED_MEMORY`."""
