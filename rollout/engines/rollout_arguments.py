"""What vLLM is started with for rollouts."""

import difflib
from dataclasses import fields
from pathlib import Path

import torch
from vllm import AsyncEngineArgs
from vllm.config import WeightTransferConfig
from vllm.triton_utils import HAS_TRITON

from temper.rollout.budget.rule import CLOSING
from temper.rollout.engines.config import OURS, SET_BY, EngineConfig
from temper.rollout.engines.runners.batch_thinking_processor import BatchThinkingProcessor
from temper.rollout.engines.runners.choice import RunnerName, choose_runner, set_runner, speculative_config
from temper.rollout.engines.runners.thinking_processor import ThinkingProcessor
from temper.rollout.engines.vllm_settings import ON_CPU, engine_arguments
from temper.rollout.engines.vllm_worker import BACKEND, WorkerExtension

WHOLE_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The types of a cache's numbers that are a model's too, by their names in `kv_cache_dtype`."""
HYBRID_MATCH = 16
"""Tokens in whose multiples a cached prefix of a hybrid ends. By default it is a whole block, of more than a thousand."""
THINKING_PROCESSORS: dict[RunnerName, type] = {"v1": ThinkingProcessor, "v2": BatchThinkingProcessor}
"""What limits thoughts in each of vLLM's model runners."""


def rollout_arguments(
    model_dir: Path, config: EngineConfig, *, closing: str | None, record_experts: bool, sleeps: bool = False
) -> AsyncEngineArgs:
    """Return the arguments of an engine. `closing` is what closes a thought that is limited; None where none is. One that
    `sleeps` gives its memory to the learner for a while. Sets the variable by which vLLM knows its runner.

    Raises `ValueError` where `extra` names what vLLM does not know, and for what it can't do with this model here.
    """
    if ON_CPU and config.pipeline_parallel > 1:
        raise ValueError(
            f"rollout.engine.pipeline_parallel={config.pipeline_parallel}: vLLM's CPU build has no pipelines; set "
            "rollout.engine.tensor_parallel"
        )
    known = {each.name for each in fields(AsyncEngineArgs)}
    assert OURS | set(SET_BY) <= known
    for name in config.extra:
        if name not in known:
            like = difflib.get_close_matches(name, known, n=1)
            raise ValueError(f"rollout.engine.extra.{name}: vLLM has no such setting{f'; {like[0]}?' if like else ''}")
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
            # Not the logits' own: what was really sampled from.
            "logprobs_mode": "processed_logprobs",
            # The first runner takes none beside drafts: there `DraftSampler` has them.
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
    if ON_CPU:
        _refuse_another_type(arguments)
    if drafts and runner == "v1" and arguments.create_model_config().is_hybrid:
        raise ValueError(
            f"rollout.engine.speculation={config.speculation}: on a CPU vLLM can't take a refused draft out of the states of "
            "this model's Mamba layers again; set it to off"
        )
    if by_vllm and config.prefix_caching == "off":
        raise ValueError(
            "rollout.engine.prefix_caching=off: vLLM records experts beside cached prefixes alone; leave it at auto, or set "
            "rollout.engine.runner=v1"
        )
    why_not = (
        _uncached(arguments, record_experts=record_experts and not by_vllm) if config.prefix_caching != "off" else ""
    )
    if why_not and config.prefix_caching == "on":
        raise ValueError(f"rollout.engine.prefix_caching=on, but {why_not}; leave it at auto")
    arguments.enable_prefix_caching = config.prefix_caching != "off" and not why_not
    if arguments.enable_prefix_caching and not ON_CPU and arguments.create_model_config().is_hybrid:
        arguments.prefix_match_unit = arguments.prefix_match_unit or HYBRID_MATCH
    return arguments


def _refuse_another_type(arguments: AsyncEngineArgs) -> None:
    """Raise `ValueError` for keys and values in another whole type than the model's: vLLM's attention on a CPU knows that of
    the model and fp8, takes others all the same, and computes wrongly.
    """
    cache = WHOLE_TYPES.get(arguments.kv_cache_dtype)
    if cache is None:
        return
    model = arguments.create_model_config().dtype
    if cache != model:
        raise ValueError(
            f"rollout.engine.extra.kv_cache_dtype={arguments.kv_cache_dtype} beside a model in "
            f"{str(model).removeprefix('torch.')}: vLLM's CPU build computes wrongly with it; leave it out, which takes the "
            f"model's own type, or set rollout.engine.dtype={arguments.kv_cache_dtype} too"
        )


def _uncached(arguments: AsyncEngineArgs, *, record_experts: bool) -> str:
    """Return why prefixes can't be cached; empty where they can."""
    if record_experts:
        return "router replay needs the experts of every token, which one from the cache has not been through"
    model = arguments.create_model_config()
    if model.is_attention_free or (ON_CPU and model.is_hybrid):
        return "vLLM has no states in the middle of a prompt for the Mamba layers of this model here"
    return ""
