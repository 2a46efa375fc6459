"""What a plan takes for granted where nothing says it: shares of what the hardware could do, and what the answers are like.

None of it is known before a run. A plan prints what it took, and each may be given (`--assume answer_tokens=2000`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite

MAY_BE_ZERO = frozenset(
    (
        *("shm_gib", "engine_overhead_gib", "rank_overhead_gib", "pass_ms"),
        *("prompt_tokens", "answer_tokens", "sampled_per_s", "trained_per_s", "flops_learning"),
        *("tensor_ms", "connect_s"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What is assumed of machines, kernels and answers."""

    host_gib_per_gpu: float = 128.0
    """Main memory of a machine for each of its GPUs, in GiB, where the hardware is one by name (`--gpus`)."""
    shm_gib: float = 0.0625
    """Size of /dev/shm there, in GiB: what a container has that nobody told otherwise."""
    engine_overhead_gib: float = 2.0
    """What a process of an engine has beside weights and cache, in GiB: graphs, and what a pass computes."""
    rank_overhead_gib: float = 3.0
    """What a rank has beside all that is counted, in GiB: the context of CUDA, NCCL's buffers, fragments."""
    prompt_tokens: float = 512.0
    """Tokens of a prompt, in the mean; at most a quarter of what an episode may have."""
    answer_share: float = 0.5
    """Sampled tokens of an answer, in the mean, as a share of what the limits of its turns and of the episode allow."""
    answer_tokens: float = 0.0
    """The same in tokens; 0 takes the share."""
    longest_times: float = 2.0
    """The longest answer of a step as a multiple of the mean, as far as those limits allow."""
    kept_groups: float = 1.0
    """Share of the groups that are trained on; those without signal are sampled for nothing."""
    flops_learning: float = 0.0
    """Share of a GPU's peak in bfloat16 that the learner's passes reach. 0 takes 0.3, and 0.1 of a model with experts."""
    flops_prefill: float = 0.5
    """The same of engines over prompts."""
    bandwidth_decoding: float = 0.7
    """Share of a GPU's memory bandwidth that decoding reaches."""
    pass_ms: float = 3.0
    """What a decoding pass takes beside reading memory, in milliseconds: kernels that are launched, sampling, scheduling."""
    link_share: float = 0.7
    """Share of the bandwidth between GPUs, and between machines, that collectives reach."""
    network_gbs: float = 50.0
    """Bandwidth between two machines for each GPU, in GB/s: a 400 Gb/s adapter each. Collectives use all of a machine."""
    pcie_gbs: float = 25.0
    """Copies of pinned memory between main memory and a GPU, in GB/s in one direction."""
    host_copy_gbs: float = 6.0
    """Copies between main memory and a GPU, or in main memory, in GB/s for a process, with their checksums."""
    ray_gbs: float = 2.0
    """What Ray brings an object to another machine with, in GB/s."""
    tensor_ms: float = 0.6
    """Milliseconds of an engine to load a tensor of a push, without its bytes. Each expert has its own tensors."""
    connect_s: float = 2.0
    """Seconds to connect a group of a broadcast, before the first push."""
    sampled_per_s: float = 0.0
    """Tokens that an engine samples a second, all its sequences together; 0 goes by the GPU, where it is named."""
    trained_per_s: float = 0.0
    """Tokens that the learner trains on a second, prompts included; 0 likewise."""
    disk_gbs: float = 1.0
    """What a checkpoint's files are written with, in GB/s."""

    def given(self, pairs: Sequence[str]) -> "Assumptions":
        """Return them with `name=value` pairs over them.

        Raise `ValueError` for a name that is none, or a number that can't be.
        """
        known = {each.name for each in fields(self)}
        told: dict[str, float] = {}
        for pair in pairs:
            name, _, text = pair.partition("=")
            if name not in known:
                raise ValueError(f"--assume {pair}: nothing is called {name}; there are {', '.join(sorted(known))}")
            try:
                told[name] = float(text)
            except ValueError:
                raise ValueError(f"--assume {pair}: give a number, such as {name}={getattr(self, name):g}") from None
            least = "0 or more" if name in MAY_BE_ZERO else "above 0"
            if not isfinite(told[name]) or told[name] < 0 or (told[name] == 0 and name not in MAY_BE_ZERO):
                raise ValueError(f"--assume {pair}: must be a number {least}")
        return replace(self, **told)
