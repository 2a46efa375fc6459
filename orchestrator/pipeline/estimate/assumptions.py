"""Assumptions of a plan: the reached shares of hardware peaks, and lengths of prompts and answers.

They are unknown before a run. A plan prints them, and `--assume answer_tokens=2000` replaces one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite

from temper.orchestrator.pipeline.estimate.memory import ENGINE_OVERHEAD_GIB, RANK_OVERHEAD_GIB

MAY_BE_ZERO = frozenset(
    (
        *("shm_gib", "engine_overhead_gib", "rank_overhead_gib", "pass_ms"),
        *("prompt_tokens", "answer_tokens", "flops_learning", "tensor_ms"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Assumptions about machines, kernels and answers."""

    host_gib_per_gpu: float = 128.0
    """Main memory of a named machine (`--gpus`) per GPU, in GiB."""
    shm_gib: float = 0.0625
    """Size of /dev/shm of a named machine, in GiB: the default of a container."""
    engine_overhead_gib: float = ENGINE_OVERHEAD_GIB
    """GiB of an engine's process in addition to weights and cache: graphs, and buffers of a pass."""
    rank_overhead_gib: float = RANK_OVERHEAD_GIB
    """GiB of a rank in addition to all counted parts: the context of CUDA, NCCL's buffers, fragments."""
    prompt_tokens: float = 512.0
    """Mean tokens of a prompt. At most a quarter of an episode's limit."""
    answer_share: float = 0.5
    """Mean sampled tokens of an answer, as a share of the limits of its turns and of the episode."""
    answer_tokens: float = 0.0
    """Mean tokens of an answer. 0 uses `answer_share`."""
    longest_times: float = 2.0
    """The longest answer of a step as a multiple of the mean, within the limits."""
    kept_groups: float = 1.0
    """Share of the groups that are trained on. Groups without signal are sampled in vain."""
    flops_learning: float = 0.0
    """Share of a GPU's bfloat16 peak that the learner reaches. 0 uses the share of the kind of model (`step_time`)."""
    flops_prefill: float = 0.5
    """The same of engines over prompts."""
    bandwidth_decoding: float = 0.7
    """Share of a GPU's memory bandwidth that decoding reaches."""
    pass_ms: float = 3.0
    """Milliseconds of a decoding pass in addition to reading memory: kernel launches, sampling, scheduling."""
    link_share: float = 0.7
    """Share of the bandwidth between GPUs, and between machines, that collectives reach."""
    network_gbs: float = 50.0
    """Bandwidth between two machines per GPU, in GB/s: a 400 Gb/s adapter each. Collectives use all adapters of a machine."""
    pcie_gbs: float = 25.0
    """Copies of pinned memory between main memory and a GPU, in GB/s per direction."""
    host_copy_gbs: float = 6.0
    """Copies between main memory and a GPU, or within main memory, in GB/s for a process, with their checksums."""
    ray_gbs: float = 2.0
    """Rate at which Ray transfers an object to another machine, in GB/s."""
    tensor_ms: float = 0.1
    """Milliseconds to pack and load a pushed tensor, without its bytes. Each expert has separate tensors."""

    def with_overrides(self, pairs: Sequence[str]) -> "Assumptions":
        """Return them with `name=value` pairs over them. Raise `ValueError` for an unknown name or an impossible number."""
        known = {each.name for each in fields(self)}
        changed: dict[str, float] = {}
        for pair in pairs:
            name, _, text = pair.partition("=")
            if name not in known:
                raise ValueError(f"--assume {pair}: unknown name {name}; use one of {', '.join(sorted(known))}")
            try:
                changed[name] = float(text)
            except ValueError:
                raise ValueError(f"--assume {pair}: use a number, such as {name}={getattr(self, name):g}") from None
            least = "0 or more" if name in MAY_BE_ZERO else "above 0"
            if not isfinite(changed[name]) or changed[name] < 0 or (changed[name] == 0 and name not in MAY_BE_ZERO):
                raise ValueError(f"--assume {pair}: must be a number {least}")
        return replace(self, **changed)
