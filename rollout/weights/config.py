"""Weight pushes without torch: names of transports and types as settings give them, and the sizes of buffers."""

from typing import Literal

WireDtype = Literal["float32", "bfloat16", "float16"]
"""Types in which weights are sent."""
SHARED_MEMORY, BROADCAST, CUDA_IPC = "shared_memory", "broadcast", "cuda_ipc"
TRANSPORTS = (SHARED_MEMORY, BROADCAST, CUDA_IPC)
AUTO = "auto"
"""Leaves the choice to the run, which knows the cluster. Without a run it is `SHARED_MEMORY`."""
COPIES = 2
"""Copies of the weights in the learner, unless it sends buckets: engines may read one while it writes the next."""
BUCKET_BYTES = {"cpu": 2**26, "cuda": 2**29}
"""Most bytes of a bucket, by the sender's device. A larger tensor has its own bucket. Each side holds `AHEAD` buckets, and an
engine also the earlier buckets of an incomplete layer. On a CPU they are small, because gloo is slower with larger ones. On a
GPU each bucket costs a kernel launch and a checksum that waits for the device."""
AHEAD = 2
"""Number of buckets that are packed, sent or loaded at once."""
