"""How a rollout engine runs: its settings, and which of vLLM's own are left to them."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from temper.envs.core.setting import free, immutable

Dtype = Literal["float32", "bfloat16", "float16", "auto"]
"""Precision of an engine's weights; auto is that of the model's files."""
PrefixCaching = Literal["auto", "on", "off"]
Runner = Literal["auto", "v1", "v2"]
Speculation = Literal["off", "ngram", "mtp"]
SLOWEST_PUSH = 100e6
"""Bytes a second of a weight push, at the least."""
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
"""vLLM's settings that have one here."""
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
"""vLLM's settings on whose values weight pushes, budgets and exact log-probabilities rest."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How a rollout engine runs."""

    dtype: Dtype = immutable("float32")
    """Precision of the weights: float32, which makes trainer and engine agree to 1e-6, bfloat16, float16 or auto."""
    max_model_len: int = free(1024, unit="tokens")
    """Longest sequence, prompt included, in tokens."""
    max_sequences: int = free(256)
    """How many sequences are generated at once."""
    batched_tokens: int = free(4096, unit="tokens")
    """Most tokens in one forward pass, prompts included; on a CPU, where a prompt is one pass, at least `max_model_len`."""
    prefix_caching: PrefixCaching = free("auto")
    """Whether what prompts begin with alike is computed once while the weights are the same: the prompt of a group, the
    turns before in an episode. auto is on, but for what can't: hybrid models and router replay on a CPU."""
    runner: Runner = free("auto")
    """vLLM's model runner: auto is its second, v2, and the first, v1, where that can't: on CPUs."""
    speculation: Speculation = free("off")
    """How tokens are guessed ahead, to be checked many in a pass: from what the sequence has said before (ngram), or by the
    model's own heads for it (mtp; on GPUs). The same tokens are sampled on a CPU, on a GPU those of the same distribution."""
    draft_tokens: int = free(3, unit="tokens")
    """How many tokens are guessed ahead."""
    draft_heads: str | None = free(None)
    """Folder of the model whose heads guess (mtp): models that a run has saved have none. null is the engine's own model."""
    tensor_parallel: int = free(1)
    """Processes that share each layer of one engine, each with a GPU, or with `threads` CPU threads."""
    pipeline_parallel: int = free(1)
    """Processes, times those of `tensor_parallel`, that have a part of the layers each."""
    expert_parallel: bool = free(False)
    """Whether the processes have whole experts each, in place of a part of every expert."""
    threads: int = free(1)
    """CPU threads of each of the engine's processes; ignored on a GPU."""
    memory_gib: int = free(1, unit="GiB")
    """Size of the key-value cache on a CPU, in GiB; ignored on a GPU."""
    gpu_memory_utilization: float = free(0.5, unit="share")
    """Share of a GPU's memory that the engine may take; ignored on a CPU."""
    push_timeout_s: float = free(120.0, unit="seconds")
    """Deadline of one delivery of a weight push, in seconds, beside the time of its bytes at 100 megabytes a second."""
    extra: dict[str, Any] = immutable({})
    """More settings of vLLM, by their names in its `AsyncEngineArgs`: `{quantization: fp8, kv_cache_dtype: fp8}`."""

    def __post_init__(self) -> None:
        if min(self.tensor_parallel, self.pipeline_parallel) < 1:
            raise ValueError(
                f"rollout.engine.tensor_parallel={self.tensor_parallel} and pipeline_parallel={self.pipeline_parallel} "
                "must be at least 1"
            )
        if self.draft_tokens < 1:
            raise ValueError(f"rollout.engine.draft_tokens={self.draft_tokens} must be at least 1 token")
        for name in self.extra:
            if name in SET_BY:
                raise ValueError(f"rollout.engine.extra.{name} has a setting of its own: {SET_BY[name]}")
            if name in OURS:
                raise ValueError(f"rollout.engine.extra.{name} can't be set: pushes, budgets or exactness rest on it")

    def with_float32_head(self) -> "EngineConfig":
        """Return the same with an output layer in float32, by vLLM's own `head_dtype`."""
        overrides = self.extra.get("hf_overrides", {}) | {HEAD_DTYPE: "float32"}
        return replace(self, extra=self.extra | {"hf_overrides": overrides})

    @property
    def processes(self) -> int:
        """How many processes compute one engine's passes, each with a GPU where there are GPUs."""
        return self.tensor_parallel * self.pipeline_parallel

    def push_deadline_s(self, nbytes: int) -> float:
        """Return the deadline of one delivery of so many bytes."""
        return self.push_timeout_s + nbytes / SLOWEST_PUSH
