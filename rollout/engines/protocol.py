"""The interface of an inference engine."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from temper.envs.core.clock import Clock
from temper.envs.core.process import MemoryUsage
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.config import EngineConfig
from temper.rollout.expert_choices import Choices
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The tokens that the engine generated for one prompt. `_T`: one entry per token.

    `finished` is true if the model ended its turn, false at the token limit. `injected_T` marks injected tokens, whose
    log-probability is NaN. `experts` are recorded choices (`rollout/expert_choices.py`), a row for each id of prompt and
    completion.
    """

    token_ids: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    versions_T: tuple[int, ...]
    finished: bool
    injected_T: tuple[bool, ...] = ()
    experts: Choices | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if not self.injected_T:
            object.__setattr__(self, "injected_T", (False,) * count)
        if not len(self.logprobs_T) == len(self.versions_T) == len(self.injected_T) == count:
            raise ValueError(
                f"{count} tokens, {len(self.logprobs_T)} log-probabilities, {len(self.versions_T)} versions, "
                f"{len(self.injected_T)} injected marks: the lengths must be equal"
            )

    def join(self, rest: "Completion") -> "Completion":
        """Return these tokens followed by `rest`."""
        return Completion(
            token_ids=(*self.token_ids, *rest.token_ids),
            logprobs_T=(*self.logprobs_T, *rest.logprobs_T),
            versions_T=(*self.versions_T, *rest.versions_T),
            injected_T=(*self.injected_T, *rest.injected_T),
            experts=rest.experts,  # its rows include the tokens before, which were a part of its prompt
            finished=rest.finished,
        )

    def first(self, count: int) -> "Completion":
        """Return the first `count` tokens. If that drops tokens, the turn is not finished."""
        if count >= len(self.token_ids):
            return self
        cut = len(self.token_ids) - count
        return Completion(
            token_ids=self.token_ids[:count],
            logprobs_T=self.logprobs_T[:count],
            versions_T=self.versions_T[:count],
            injected_T=self.injected_T[:count],
            experts=None if self.experts is None else self.experts[:-cut],
            finished=False,
        )


TOKENS_PER_CHARACTER = 4
"""Most tokens per character: one for each byte."""


def cut_at_stop(
    rest: Completion, prefix_ids: Sequence[int], stop: Sequence[str], text: Callable[[Sequence[int]], str]
) -> Completion:
    """Cut the rest of a turn after the token that completes a stop string, which may start in `prefix_ids`.

    An engine that continues a turn checks only the tokens that it samples. A string that started before is complete within
    its length, or never.
    """
    if not prefix_ids or not stop:
        return rest
    near = TOKENS_PER_CHARACTER * max(map(len, stop))
    for count in range(1, min(near, len(rest.token_ids)) + 1):
        decoded = text([*prefix_ids[-near:], *rest.token_ids[:count]])
        if any(one in decoded for one in stop):
            return replace(rest.first(count), finished=True)
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Work of an engine since the last report.

    `running`, `waiting` and `cache_use` (a share) are means over `passes`; the other fields are sums. A preemption is a
    request that lost its cache blocks and is recomputed. `busy_s` are seconds with requests, without weight loads and
    sleep. `hung_calls` are environment calls that outlasted their episodes.
    """

    passes: int = 0
    running: float = 0.0
    waiting: float = 0.0
    cache_use: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    busy_s: float = 0.0
    hung_calls: int = 0

    @classmethod
    def combine(cls, engines: Sequence["EngineStats"]) -> "EngineStats":
        """Return the sums over several engines, and the mean of `cache_use`."""
        rows = [asdict(one) for one in engines]
        sums = {name: sum(row[name] for row in rows) for name in asdict(cls())}
        return cls(**sums | {"cache_use": sums["cache_use"] / max(1, len(rows))})


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn to sample, after `prompt_ids` and `prefix_ids`."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    """Most tokens to sample; it overrides `sampling.max_tokens`."""
    seed: int
    sampling: Sampling = PLAIN
    limit: ThinkingLimit | None = None
    """Limit of the turn's thinking."""
    prefix_ids: tuple[int, ...] = ()
    """The turn's first tokens, sampled earlier. The limit counts them; the completion follows them."""
    name: str | None = None
    """Name for `partial_completion`."""
    clock: Clock | None = field(default=None, compare=False)
    """A running clock. The engine stops it before the first token, during weight loads and during sleep."""


class Engine(Protocol):
    """Generates from token ids, and accepts new weights meanwhile."""

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample until the end of the turn, a stop string or `request.max_tokens`.

        Log-probabilities, in nats, are of the distribution that was sampled from. At temperature 0 they are of the model at
        temperature 1.
        """
        ...

    def partial_completion(self, request: str) -> Completion | None:
        """Return the tokens that the request `name` has sampled, without its prefix. None if it does not run.

        Also None if the engine records experts, which are known only at the end of a turn.
        """
        ...

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        """Load a push under the running requests. Return the version that the engine confirms.

        `offer` is the transport's offer. `number` is this engine's number among the receivers.
        """
        ...

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Load a model directory, whose weights count as `version`. Return the version that the engine confirms."""
        ...

    async def version(self) -> WeightVersion:
        """Return the version of the weights that the engine confirms."""
        ...

    def take_stats(self) -> EngineStats:
        """Return the work since the last call."""
        ...

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Move weights and cache to the device, or off it. Off the device, weights are in main memory, the cache is
        dropped, and requests wait. A cache needs weights.

        Raise `WorkerDied` if that fails or takes longer than `limit_s` seconds.
        """
        ...

    async def memory_usage(self) -> MemoryUsage:
        """Return the state of weights and cache, and the memory that they take."""
        ...

    async def wait_for_answer(self) -> None:
        """Return when the engine's process answers, which it does between passes. Raise `WorkerDied` if it died."""
        ...

    async def wait_for_progress(self) -> None:
        """Return when the engine's processes use CPU time during a weight load, or when `wait_for_answer` would."""
        ...

    async def wait_until_dead(self) -> None:
        """Wait until the engine's process ends, then raise `WorkerDied`."""
        ...

    async def close(self) -> None: ...


class MakeEngine(Protocol):
    """Starts an engine on a model directory. It is pickled into the process of a rollout worker, which calls it once."""

    async def __call__(
        self,
        model_dir: Path,
        config: EngineConfig,
        *,
        version: WeightVersion,
        ends: tuple[int, ...],
        tags: ThinkingTags | None,
        record_experts: bool,
        sleeps: bool,
        on_pass: Callable[[int], None],
    ) -> Engine:
        """Return the engine, whose weights count as `version`. Only `ends` end a turn, and thinking limits need `tags`.

        With `record_experts` it records expert choices. Raise `ValueError` if it can't. With `sleeps` it shares its device.
        `on_pass` gets the tokens of each pass.
        """
        ...
