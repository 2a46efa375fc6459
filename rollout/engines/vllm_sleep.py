"""vLLM's sleep mode: while another process has the device, an engine keeps no cache on it and its weights in main memory.

Level 1 is what it sleeps at. Level 2 would forget the weights, as the next push brings others; but a model holds tensors there
that no push has, such as the bias that balances a router, and an engine may wake without a push.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from temper.envs.core.errors import in_words
from temper.envs.core.member import Holding, WorkerDied
from temper.rollout.engines.engine_process import EngineProcess

LEVEL = 1
WEIGHTS, CACHE = "weights", "kv_cache"
"""vLLM's names for what it wakes part by part."""


class VllmSleep:
    """What one engine has on its device: all, its weights alone, or nothing."""

    def __init__(self, llm: AsyncLLM, process: EngineProcess) -> None:
        self._llm = llm
        self._process = process
        self.weights = self.cache = True
        """Whether each is on the device."""

    async def occupy(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """See `Engine.occupy`. Requests that run when it falls asleep are frozen, and computed anew when it wakes."""
        assert weights or not cache, "a cache is of no use without weights"
        if (weights, cache) == (self.weights, self.cache):
            return
        what = f"{'wake' if weights else 'fall asleep'} within {limit_s:.0f} s"
        try:
            async with asyncio.timeout(limit_s):
                await self._process.answer(self._wake(cache=cache) if weights else self._sleep())
        except WorkerDied:
            raise
        except TimeoutError:
            raise WorkerDied(f"the engine did not {what}") from None
        except Exception as error:
            raise WorkerDied(f"the engine could not {what}: {in_words(error)}") from error
        self.weights, self.cache = weights, cache

    async def _sleep(self) -> None:
        await self._llm.sleep(level=LEVEL, mode="keep")
        await self._llm.collective_rpc("give_cache_back")

    async def _wake(self, *, cache: bool) -> None:
        assert not self.cache, "it falls asleep before it wakes with its weights alone"
        parts = ([] if self.weights else [WEIGHTS]) + ([CACHE] if cache else [])
        fully = await self._llm.wake_up(parts)
        if fully is not cache:
            raise RuntimeError(f"vLLM has {'all' if fully else 'not all'} of its memory after it woke with {parts}")

    async def holding(self) -> Holding:
        """See `Engine.holding`: of an engine of several processes the sums."""
        asking: Coroutine[Any, Any, list[tuple[int, int, int, int]]] = self._llm.collective_rpc("memory")
        weights, cache, main, device = (sum(parts) for parts in zip(*await self._process.answer(asking), strict=True))
        return Holding(
            weights=weights if self.weights else 0,
            cache=cache if self.cache else 0,
            main=main,
            device=device or None,
        )
