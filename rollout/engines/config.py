"""Settings of a rollout engine, and the vLLM settings that users may not change."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from temper.envs.core.bounds import require_positive
from temper.envs.core.setting import free, immutable

Dtype = Literal["float32", "bfloat16", "float16", "auto"]
"""Precision of an engine's weights; auto is the precision of the model's files."""
PrefixCaching = Literal["auto", "on", "off"]
Runner = Literal["auto", "v1", "v2"]
Speculation = Literal["off", "ngram", "mtp"]
BLOCK_CPU = 32
"""Tokens of a cache page on a CPU in models with nothing but attention: the fewest that vLLM's kernel takes.

Prefixes are cached in whole pages, and vLLM's default of 128 exceeds many prompts.
"""
SLOWEST_PUSH = 100e6
"""Lowest assumed speed of a weight push, in bytes per second."""
HEAD_DTYPE = "head_dtype"
"""vLLM's name, in a model's configuration, for the type of the output layer."""
SET_BY = {
    "model": "model.path",
    "dtype": "rollout.engine.dtype",
    "max_model_len": "rollout.engine.max_model_len",
    "max_num_seqs": "rollout.engine.max_sequences",
    "max_num_batched_tokens": "rollout.engine.batched_tokens",
    "enable_prefix_caching": "rollout.engine.prefix_caching",
    "tensor_parallel_size": "rollout.engine.tensor_parallel",
    "pipeline_parallel_size": "rollout.engine.pipeline_parallel",
    "enable_expert_parallel": "rollout.engine.expert_parallel",
    "data_parallel_size": "rollout.workers",
    "enable_sleep_mode": "placement",
    "speculative_config": "rollout.engine.speculation",
    "gpu_memory_utilization": "rollout.engine.gpu_memory_utilization",
}
"""vLLM settings with a setting of Temper."""
OURS = frozenset(
    {
        "additional_config",
        "disable_log_stats",
        "distributed_executor_backend",
        "enable_chunked_prefill",
        "logits_processors",
        "logprobs_mode",
        "trust_remote_code",
        "weight_transfer_config",
        "worker_extension_cls",
    }
)
"""vLLM settings that weight pushes, budgets and exact log-probabilities depend on."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How a rollout engine runs."""

    dtype: Dtype = immutable("float32")
    """Precision of the weights: float32, with which trainer and engine agree to 1e-6, bfloat16, float16 or auto."""
    max_model_len: int = free(1024, unit="tokens")
    """Longest sequence, prompt included."""
    max_sequences: int = free(256)
    """Sequences that are generated at once."""
    batched_tokens: int = free(4096, unit="tokens")
    """Most tokens in one forward pass, prompts included; on a CPU at least `max_model_len`, as a prompt is one pass."""
    prefix_caching: PrefixCaching = free("auto")
    """Whether to cache common prefixes while the weights stay the same: a group's prompt, earlier turns of an episode. auto
    is on, except on a CPU with router replay or a hybrid model other than Nemotron-H. A profile turns it off on GPUs if the
    plan is faster so.
    """
    runner: Runner = free("auto")
    """vLLM's model runner. auto is v2, or v1 on a CPU, where v2 does not run."""
    speculation: Speculation = free("off")
    """Speculative decoding: from earlier tokens of the sequence (ngram), or with the model's own heads (mtp, on GPUs). On a
    CPU it samples the same tokens, on a GPU the same distribution.
    """
    draft_tokens: int = free(3, unit="tokens")
    """Number of draft tokens."""
    draft_heads: str | None = free(None)
    """Folder of the model with the draft heads (mtp); null is the engine's model. Models that a run saves have none."""
    tensor_parallel: int = free(1)
    """Processes that share each layer of an engine, each with a GPU, or with `threads` CPU threads."""
    pipeline_parallel: int = free(1)
    """Pipeline stages of an engine, each with `tensor_parallel` processes."""
    expert_parallel: bool = free(False)
    """Whether processes hold whole experts instead of a part of each."""
    threads: int = free(1)
    """CPU threads per engine process. Ignored on a GPU."""
    memory_gib: int = free(1, unit="GiB")
    """Size of the key-value cache on a CPU, in GiB. Ignored on a GPU."""
    gpu_memory_utilization: float = free(0.5, unit="share")
    """Share of a GPU's memory for the engine. Ignored on a CPU."""
    push_timeout_s: float = free(120.0, unit="seconds")
    """Deadline of a weight push, in seconds, plus the time of its bytes at 100 MB/s."""
    extra: dict[str, Any] = immutable({})
    """Further vLLM settings, by their names in `AsyncEngineArgs`: `{quantization: fp8, kv_cache_dtype: fp8}`."""

    def __post_init__(self) -> None:
        counts = ("max_sequences", "batched_tokens", "draft_tokens", "tensor_parallel", "pipeline_parallel", "threads")
        for name in (*counts, "gpu_memory_utilization", "push_timeout_s"):
            require_positive(f"rollout.engine.{name}", vars(self)[name])
        for name in self.extra:
            if name in SET_BY:
                raise ValueError(f"rollout.engine.extra.{name} can't be set; set {SET_BY[name]} instead")
            if name in OURS:
                raise ValueError(
                    f"rollout.engine.extra.{name} can't be set: pushes, budgets or log-probabilities depend on it; remove it"
                )

    def with_float32_head(self) -> "EngineConfig":
        """Return this configuration with a float32 output layer, by vLLM's `head_dtype`."""
        overrides = self.extra.get("hf_overrides", {}) | {HEAD_DTYPE: "float32"}
        return replace(self, extra=self.extra | {"hf_overrides": overrides})

    @property
    def processes(self) -> int:
        """Processes of one engine, each with its own GPU, if there are GPUs."""
        return self.tensor_parallel * self.pipeline_parallel

    def push_deadline_s(self, nbytes: int) -> float:
        """Return the deadline of a push of `nbytes`."""
        return self.push_timeout_s + nbytes / SLOWEST_PUSH
