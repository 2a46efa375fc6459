"""vLLM's arguments for rollouts."""

from dataclasses import fields
from pathlib import Path

import torch
from vllm import AsyncEngineArgs
from vllm.config import ModelConfig, WeightTransferConfig
from vllm.triton_utils import HAS_TRITON

from temper.envs.core.bounds import suggest_name
from temper.rollout.budget.rule import CLOSING
from temper.rollout.engines.config import BLOCK_CPU, OURS, SET_BY, EngineConfig
from temper.rollout.engines.hybrid_prefixes import PromptScheduler
from temper.rollout.engines.runners.batch_thinking_processor import BatchThinkingProcessor
from temper.rollout.engines.runners.choice import RunnerName, choose_runner, set_runner, speculative_config
from temper.rollout.engines.runners.thinking_processor import ThinkingProcessor
from temper.rollout.engines.vllm_settings import ON_CPU, engine_arguments
from temper.rollout.engines.vllm_worker import BACKEND, WorkerExtension

WHOLE_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Unquantized cache types, by their names in `kv_cache_dtype`."""
HYBRID_MATCH = 16
"""Cached prefixes of a hybrid model end at multiples of this many tokens. vLLM's default is a block of over a thousand."""
CACHED_ON_CPU = ("NemotronHForCausalLM",)
"""Hybrid models whose states can be cached on a CPU: tested ones, with Mamba 2."""
THINKING_PROCESSORS: dict[RunnerName, type] = {"v1": ThinkingProcessor, "v2": BatchThinkingProcessor}
"""Logits processors of thinking limits, by model runner."""


def rollout_arguments(
    model_dir: Path, config: EngineConfig, *, closing: str | None, record_experts: bool, sleeps: bool = False
) -> AsyncEngineArgs:
    """Return the arguments of an engine. `closing` ends limited thinking. None without limits. With `sleeps` the engine
    shares its device with the learner. Sets the environment variable of vLLM's runner.

    Raises `ValueError` for unknown settings in `extra`, and for settings that vLLM can't apply to this model.
    """
    if ON_CPU and config.pipeline_parallel > 1:
        raise ValueError(
            f"rollout.engine.pipeline_parallel={config.pipeline_parallel}: vLLM's CPU build does not support pipelines; set "
            "rollout.engine.tensor_parallel"
        )
    known = {each.name for each in fields(AsyncEngineArgs)}
    assert OURS | set(SET_BY) <= known
    for name in config.extra:
        if name not in known:
            raise ValueError(f"rollout.engine.extra.{name}: vLLM has no such setting{suggest_name(name, known)}")
    runner = choose_runner(
        config.runner, triton=HAS_TRITON, records_pipeline=record_experts and config.pipeline_parallel > 1
    )
    by_vllm = record_experts and runner == "v2"
    drafts = speculative_config(config, runner, model_dir, record_experts=record_experts)
    set_runner(runner)
    arguments = AsyncEngineArgs(
        **engine_arguments(eager=record_experts and not by_vllm, processes=config.processes)
        | config.extra
        | {
            "model": str(model_dir),
            "dtype": config.dtype,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_sequences,
            "max_num_batched_tokens": max(config.batched_tokens, config.max_model_len if ON_CPU else 0),
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "enable_sleep_mode": sleeps and not ON_CPU,  # the CPU build refuses it: see cache_pages.py
            "tensor_parallel_size": config.tensor_parallel,
            "pipeline_parallel_size": config.pipeline_parallel,
            "enable_expert_parallel": config.expert_parallel,
            # Log-probabilities after temperature and truncation, of the distribution that was sampled from.
            "logprobs_mode": "processed_logprobs",
            # The first runner loads no processors with drafts. `DraftSampler` applies them there.
            "logits_processors": []
            if closing is None or (drafts and runner == "v1")
            else [THINKING_PROCESSORS[runner]],
            "speculative_config": drafts,
            "enable_return_routed_experts": by_vllm,
            "additional_config": {} if closing is None else {CLOSING: closing},
            "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
            "worker_extension_cls": f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
        }
    )
    model = arguments.create_model_config()
    if ON_CPU:
        _refuse_another_type(arguments.kv_cache_dtype, model)
    if drafts and runner == "v1" and model.is_hybrid:
        raise ValueError(
            f"rollout.engine.speculation={config.speculation}: on a CPU vLLM can't undo a rejected draft in the states "
            "of this model's Mamba layers; set it to off"
        )
    if by_vllm and config.prefix_caching == "off":
        raise ValueError(
            "rollout.engine.prefix_caching=off: vLLM records experts only with prefix caching; leave it at auto, or set "
            "rollout.engine.runner=v1"
        )
    why_not = _uncached(model, record_experts=record_experts and not by_vllm)
    if why_not and config.prefix_caching == "on":
        raise ValueError(f"rollout.engine.prefix_caching=on, but {why_not}; leave it at auto")
    arguments.enable_prefix_caching = config.prefix_caching != "off" and not why_not
    if ON_CPU and not (model.is_hybrid or model.is_attention_free):
        arguments.block_size = arguments.block_size or BLOCK_CPU
    if arguments.enable_prefix_caching and model.is_hybrid:
        arguments.prefix_match_unit = arguments.prefix_match_unit or HYBRID_MATCH
        if ON_CPU:
            arguments.scheduler_cls = PromptScheduler
            arguments.enable_chunked_prefill = True  # of prompts, `PromptScheduler` divides
    return arguments


def _refuse_another_type(named: str, model: ModelConfig) -> None:
    """Raise `ValueError` if the cache has another unquantized type than the model. vLLM's CPU attention accepts it and
    computes wrong results.
    """
    cache = WHOLE_TYPES.get(named)
    if cache is not None and cache != model.dtype:
        raise ValueError(
            f"rollout.engine.extra.kv_cache_dtype={named} with a model in "
            f"{str(model.dtype).removeprefix('torch.')}: vLLM's CPU build computes wrong results with it; remove it to use the "
            f"model's type, or set rollout.engine.dtype={named} too"
        )


def _uncached(model: ModelConfig, *, record_experts: bool) -> str:
    """Return the reason why prefixes can't be cached, or ""."""
    if record_experts:
        return "router replay needs the experts of every token, and cached tokens have none"
    if model.is_attention_free or (ON_CPU and model.is_hybrid and model.architecture not in CACHED_ON_CPU):
        return "vLLM can't cache the states of this model's Mamba layers inside a prompt"
    return ""
