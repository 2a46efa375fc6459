"""What the rollout needs of an inference engine, whichever it is."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from temper.envs.core.clock import Clock
from temper.envs.core.process import MemoryUsage
from temper.rollout.budget.rule import ThinkingLimit
from temper.rollout.expert_choices import Choices
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine generated for one prompt. `_T`: one entry per token.

    `finished` is true where the model ended its turn, false where the token limit cut it off. `injected_T` marks the
    tokens that closed a thought at its limit: they were not sampled, and their log-probability is NaN. `experts` are the
    choices of an engine that records them (`rollout/expert_choices.py`), a row for each id of prompt and completion.
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
                f"{len(self.injected_T)} marks"
            )

    def then(self, rest: "Completion") -> "Completion":
        """Return these tokens and those that were sampled after them, whose end is the end of the whole."""
        return Completion(
            token_ids=(*self.token_ids, *rest.token_ids),
            logprobs_T=(*self.logprobs_T, *rest.logprobs_T),
            versions_T=(*self.versions_T, *rest.versions_T),
            injected_T=(*self.injected_T, *rest.injected_T),
            experts=rest.experts,  # of prompt and completion, and the tokens before were a part of its prompt
            finished=rest.finished,
        )

    def ended(self, count: int) -> "Completion":
        """Return the first `count` tokens, which end the turn."""
        return replace(self.first(count), finished=True)

    def first(self, count: int) -> "Completion":
        """Return the first `count` tokens; an end that lay behind them is not there."""
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
"""Most tokens of one character: one for each of its bytes."""


def cut_at_stop(
    rest: Completion, prefix_ids: Sequence[int], stop: Sequence[str], text: Callable[[Sequence[int]], str]
) -> Completion:
    """Return the rest of a turn, up to the token that completes a stop string which the tokens before it had `prefix_ids`.

    An engine that continues a turn sees only the tokens that it samples itself. A string that had begun is complete within its
    length, or never.
    """
    if not prefix_ids or not stop:
        return rest
    near = TOKENS_PER_CHARACTER * max(map(len, stop))
    for count in range(1, min(near, len(rest.token_ids)) + 1):
        said = text([*prefix_ids[-near:], *rest.token_ids[:count]])
        if any(one in said for one in stop):
            return rest.ended(count)
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What an engine did since it was last asked.

    `running` and `waiting` are the requests that were generated and that waited for room in a pass, `cache_use` is the share
    of the key-value cache that was taken: means over the `passes`. The others are sums; a request that lost its room to
    another and is computed again is a preemption. Of the tokens that were guessed ahead some were accepted. `busy_s` are the
    seconds in which it had a request and did not stand still for weights or asleep. `hung_calls` is how many calls of
    environments in its worker still run although their episodes have ended.
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
    def together(cls, engines: Sequence["EngineStats"]) -> "EngineStats":
        """Return what several engines did: the sums over them, of `cache_use` the mean."""
        rows = [asdict(one) for one in engines]
        sums = {name: sum(row[name] for row in rows) for name in asdict(cls())}
        return cls(**sums | {"cache_use": sums["cache_use"] / max(1, len(rows))})


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What an engine is to sample: the rest of the turn that follows `prompt_ids` and has `prefix_ids`."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    """Most tokens that it samples, whatever `sampling.max_tokens` is."""
    seed: int
    sampling: Sampling = PLAIN
    limit: ThinkingLimit | None = None
    """Where the thought that the turn begins with ends at the latest, closed by force."""
    prefix_ids: tuple[int, ...] = ()
    """The turn's first tokens, sampled before: the completion is what follows them, and the limit counts them."""
    name: str | None = None
    """By which `partial_completion` knows it."""
    clock: Clock | None = field(default=None, compare=False)
    """Runs. The engine stops it until the first token, and while it loads weights or sleeps."""


class Engine(Protocol):
    """Generates from token ids, and takes new weights while it does."""

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample until the end of the turn, a stop string or `request.max_tokens`.

        Log-probabilities, in nats, are those of the distribution that was sampled from; at temperature 0, where there is
        none, those of the model at temperature 1.
        """
        ...

    def partial_completion(self, request: str) -> Completion | None:
        """Return what the call of this name has sampled, without the tokens before; None where it is not running.

        None too from an engine that records experts: those of a turn are known when it has ended.
        """
        ...

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        """Swap the weights under the running requests for those of a push; returns the version that it now confirms.

        `offer` is what the push's transport gives to engines, of which this one is `number`.
        """
        ...

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Swap the weights for those of a model directory, which count as `version`; returns the one that it confirms."""
        ...

    def take_stats(self) -> EngineStats:
        """Return what the engine did since the last call."""
        ...

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Have the weights and the cache of keys and values on the device from now on, or not: the weights then lie in main
        memory, the cache is gone, and requests wait. A cache needs weights beside it.

        Raise `WorkerDied` where that fails or takes longer than `limit_s` seconds.
        """
        ...

    async def memory_usage(self) -> MemoryUsage:
        """Return what the engine has on its device, and the memory that it takes."""
        ...

    async def answers(self) -> None:
        """Return once the engine's process has answered; raise `WorkerDied` where it has died. It answers between passes."""
        ...

    async def wait_for_progress(self) -> None:
        """Return once the engine's processes are seen at work while they load weights, or `answers` would."""
        ...

    async def died(self) -> None:
        """Wait for as long as the engine's process lives, then raise `WorkerDied`."""
        ...

    async def close(self) -> None:
        """Stop the engine and its processes."""
        ...
