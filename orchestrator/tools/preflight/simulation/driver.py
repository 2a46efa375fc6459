"""The driver's CPU: one process with one interpreter lock, which every group and every push call has to pass.

Constants are measurements on two CPU cores (docs/performance.md, the driver): 0.75 microseconds of CPU for a sampled token, all
threads together, and 0.25 s for 613 calls of workers.
"""

import asyncio

TOKEN_S = 0.75e-6
"""Seconds of the driver's CPU for a sampled token: taking it over, advantages, batches, shares of ranks, its part of files."""
CALL_S = 0.25 / 613
"""Seconds of the driver's CPU for a call of a worker."""


class Driver:
    """Serves one request after another. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self.busy_s = 0.0
        """Seconds of all requests so far."""

    async def take(self, seconds: float) -> None:
        """Wait until all earlier requests and this one are served."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + seconds
        self.busy_s += seconds
        await asyncio.sleep(self._free_at - now)
