"""What an engine has on its devices, part by part, and how many sequences it holds.

Keys, values and states lie in pages that vLLM gives out (Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", 2023). In a hybrid all layers have pages of one size, that of a Mamba-2 layer's states: a page
of keys holds as many tokens as fill one, and layers are put into groups of as many as there are of the rarer kind, each of
which has pages of its own for a sequence (`vllm/v1/core/kv_cache_utils.py`, `vllm/platforms/interface.py` of 0.32).
"""

from dataclasses import dataclass

from temper.orchestrator.tools.preflight.plan.memory.layers import FLOAT32
from temper.orchestrator.tools.preflight.plan.model import PlannedModel
from temper.rollout.engines.config import EngineConfig

BLOCK_GPU, BLOCK_CPU = 16, 128
"""Tokens of a page where there is nothing but attention."""
NEAR = 1.5
"""Layers of the commoner kind over those of the rarer below which the rarer are padded to as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """How the cache of an engine's process is laid out."""

    bytes_each: int
    """Bytes of a page for all layers of a group."""
    tokens: int
    """Tokens whose keys and values one page holds; 0 in a model without attention."""
    attention_groups: int
    state_pages: int
    """Pages that a sequence has for its states, whatever its length."""
    cached_states: bool = False
    """Whether half of these are for the prefixes that others may begin with."""

    def of_sequence(self, length: int) -> int:
        """Return the bytes that a sequence of so many tokens takes."""
        kept = self.attention_groups * -(-length // self.tokens) if self.tokens else 0
        return self.bytes_each * (kept + self.state_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes of one process of an engine; on a CPU in main memory."""

    processes: int
    weights: int
    overhead: int
    cache: int
    """What is left for keys, values and states; on a CPU what `rollout.engine.memory_gib` says."""
    allowed: int
    """What it may take of its GPU; 0 on a CPU."""
    pages: Pages
    state_bytes: int
    """States of a sequence, exact, without what a page has beside them."""
    token_bytes: int
    """Keys and values of a token, likewise."""

    @property
    def peak(self) -> int:
        """What it takes in all."""
        return self.weights + self.overhead + max(0, self.cache)

    def sequences(self, length: int) -> int:
        """Return how many sequences of so many tokens fit."""
        return max(0, self.cache) // max(1, self.pages.of_sequence(length))

    @property
    def blocks(self) -> int:
        """How many pages there are."""
        return max(0, self.cache) // max(1, self.pages.bytes_each)

    def holds(self, sequences: int) -> bool:
        """Return whether each of so many sequences may have a page: where there are states, vLLM does not start otherwise."""
        return not self.pages.state_pages or sequences <= self.blocks


def engine_memory(
    model: PlannedModel, engine: EngineConfig, *, gpu_bytes: float, overhead: int, cached_prefixes: bool
) -> EngineMemory:
    """Return what a process of an engine takes; `gpu_bytes` is the memory of its GPU, 0 where it runs on a CPU."""
    width = 4 if engine.dtype == "float32" else 2
    processes = engine.processes
    weights = width * model.parameters // processes
    allowed = int(engine.gpu_memory_utilization * gpu_bytes)
    cache = allowed - weights - overhead if gpu_bytes else engine.memory_gib * 2**30
    pages = pages_of(
        model, width=width, tensor=engine.tensor_parallel, gpu=gpu_bytes > 0, cached_prefixes=cached_prefixes
    )
    return EngineMemory(
        processes=processes,
        weights=weights,
        overhead=overhead if gpu_bytes else 0,
        cache=cache,
        allowed=allowed,
        pages=pages,
        state_bytes=sum(_state_bytes(model, width=width)) // engine.tensor_parallel,
        token_bytes=sum(_token_bytes(model, width=width, tensor=engine.tensor_parallel)),
    )


def pages_of(model: PlannedModel, *, width: int, tensor: int, gpu: bool, cached_prefixes: bool) -> Pages:
    """Return how the cache is laid out of a process that has one of `tensor` parts of each layer."""
    tokens, states = _token_bytes(model, width=width, tensor=tensor), _state_bytes(model, width=width)
    block = BLOCK_GPU if gpu else BLOCK_CPU
    state, token = max(states, default=0) // tensor, max(tokens, default=0)
    if not states:
        return Pages(bytes_each=block * sum(tokens), tokens=block, attention_groups=1, state_pages=0)
    copies = 2 if cached_prefixes else 1  # one that is written, and the last that others may begin with
    if not tokens:
        return Pages(
            bytes_each=state * len(states),
            tokens=0,
            attention_groups=0,
            state_pages=copies,
            cached_states=cached_prefixes,
        )
    block *= -(-state // (block * token))
    few, many = sorted((len(tokens), len(states)))
    group = many if many < NEAR * few else few
    return Pages(
        bytes_each=block * token * group,
        tokens=block,
        attention_groups=-(-len(tokens) // group),
        state_pages=copies * -(-len(states) // group),
        cached_states=cached_prefixes,
    )


def _token_bytes(model: PlannedModel, *, width: int, tensor: int) -> list[int]:
    """Return the bytes of a token's keys and values, an attention layer each; heads that are too few to share are copied."""
    kept = [layer for layer in model.layers if layer.queries]
    return [2 * width * max(layer.keys // tensor, layer.head_dim) for layer in kept]


def _state_bytes(model: PlannedModel, *, width: int) -> list[int]:
    """Return the bytes of a sequence's states, a Mamba-2 layer each: a scan's in float32, a convolution's as weights are."""
    kept = [layer for layer in model.layers if layer.mamba]
    return [FLOAT32 * layer.state + width * layer.mixed * (layer.kernel - 1) for layer in kept]
