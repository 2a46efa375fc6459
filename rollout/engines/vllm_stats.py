"""Statistics of a running vLLM, and the episode clocks of its requests."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from temper.envs.core.clock import Clock
from temper.rollout.engines.protocol import EngineStats


class StatsRecorder(StatLoggerBase):
    """Adds up vLLM's reports after each pass. Called on the event loop of the engine's client."""

    def __init__(
        self,
        vllm_config: VllmConfig | None = None,
        engine_index: int = 0,
        *,
        on_pass: Callable[[int], None] = lambda tokens: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """vLLM gives the first two. `on_pass` gets the number of tokens that a pass sampled."""
        self._on_pass = on_pass
        self._clock = clock
        self._requests = 0
        self._paused = False
        self._counted = clock()
        self._sums: defaultdict[str, Any] = defaultdict(int)
        """Sums since the last call of `take`, by the fields of `EngineStats`."""

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self._on_pass(0 if iteration_stats is None else iteration_stats.num_generation_tokens)
        sums = self._sums
        if scheduler_stats is not None:
            sums["passes"] += 1
            sums["running"] += scheduler_stats.num_running_reqs
            sums["waiting"] += scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            sums["cache_use"] += scheduler_stats.kv_cache_usage
            if scheduler_stats.spec_decoding_stats is not None:
                sums["drafted_tokens"] += scheduler_stats.spec_decoding_stats.num_draft_tokens
                sums["accepted_tokens"] += scheduler_stats.spec_decoding_stats.num_accepted_tokens
        if iteration_stats is not None:
            sums["prompt_tokens"] += iteration_stats.num_prompt_tokens
            sums["cached_tokens"] += iteration_stats.prompt_token_stats.cached_tokens
            sums["sampled_tokens"] += iteration_stats.num_generation_tokens
            sums["preemptions"] += iteration_stats.num_preempted_reqs

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a request as the engine's work within the block."""
        self._count()
        self._requests += 1
        try:
            yield
        finally:
            self._count()
            self._requests -= 1

    def set_paused(self, *, paused: bool) -> None:
        """Stop or resume counting time as work."""
        self._count()
        self._paused = paused

    def _count(self) -> None:
        now = self._clock()
        if self._requests and not self._paused:
            self._sums["busy_s"] += now - self._counted
        self._counted = now

    def log_engine_initialized(self) -> None:
        """Do nothing: vLLM's interface needs it."""

    def take(self) -> EngineStats:
        self._count()
        sums, self._sums = self._sums, defaultdict(int)
        means = {name: sums[name] / max(1, sums["passes"]) for name in ("running", "waiting", "cache_use")}
        return EngineStats(**sums | means)


class TurnClocks:
    """Runs a request's clock from its first token on, except while the engine is paused.

    Before its first token a request may wait in vLLM's queue.
    """

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        """`has_token` returns whether the request of this name has a token."""
        self._has_token = has_token
        self._waiting: dict[str, Clock] = {}
        self._running_clocks: dict[str, Clock] = {}
        self._paused = False

    @contextmanager
    def of(self, request: str, clock: Clock | None) -> Iterator[None]:
        if clock is None:
            yield
            return
        with clock.keep(on=False):
            self._waiting[request] = clock
            try:
                yield
            finally:
                self._waiting.pop(request, None)
                self._running_clocks.pop(request, None)

    def look(self) -> None:
        """Start the clocks of requests with a token. Call it after each pass."""
        for request in [one for one in self._waiting if self._has_token(one)]:
            self._running_clocks[request] = clock = self._waiting.pop(request)
            clock.turn(on=not self._paused)

    def set_paused(self, *, paused: bool) -> None:
        """Stop the running clocks, or start them again."""
        self._paused = paused
        for clock in self._running_clocks.values():
            clock.turn(on=not paused)
