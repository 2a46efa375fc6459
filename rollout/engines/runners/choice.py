"""Choice of vLLM's model runner, and of speculative decoding.

The second runner samples and limits thinking without work per request, and vLLM develops it further. It needs Triton, so
CPUs use the first. It records no experts in pipelines.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, Literal

from temper.rollout.engines.config import EngineConfig, Runner
from temper.rollout.engines.vllm_settings import ON_CPU
from temper.rollout.weights.weight_files import tensor_names

RunnerName = Literal["v1", "v2"]
SHORTEST, LONGEST = 2, 4
"""Lengths of the sequence's end, in tokens, to search for earlier. The tokens after the match are the draft."""


def choose_runner(wanted: Runner = "auto", *, triton: bool, records_pipeline: bool = False) -> RunnerName:
    """Return the runner of an engine. `records_pipeline`: it records the experts of a pipeline.

    Raises `ValueError` if the wanted runner can't do this.
    """
    why_first = ""
    if not triton:
        why_first = "it needs Triton, which vLLM's CPU build lacks"
    elif records_pipeline:
        why_first = "it records no experts for learner.router_replay with rollout.engine.pipeline_parallel"
    if wanted == "v2" and why_first:
        raise ValueError(f"rollout.engine.runner=v2: {why_first}; leave it at auto")
    return "v1" if why_first or wanted == "v1" else "v2"


def set_runner(runner: RunnerName) -> None:
    """Set the runner of engines that this process starts later."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner == "v2"))


def speculative_config(
    config: EngineConfig, runner: RunnerName, model: Path, *, record_experts: bool = False, on_cpu: bool = ON_CPU
) -> dict[str, Any] | None:
    """Return vLLM's `speculative_config`, or None without speculation.

    Raises `ValueError` if the runner or the model can't do this.
    """
    wanted = config.speculation
    if wanted == "off":
        return None
    if record_experts:
        raise ValueError(f"rollout.engine.speculation={wanted} does not work with learner.router_replay; set it to off")
    if runner == "v1" and not on_cpu:
        raise ValueError(f"rollout.engine.speculation={wanted} needs rollout.engine.runner=v2 or auto on a GPU")
    if wanted == "ngram":
        kind = "ngram" if runner == "v1" else "ngram_gpu"
        lengths = {"prompt_lookup_min": SHORTEST, "prompt_lookup_max": LONGEST}
        return {"method": kind, "num_speculative_tokens": config.draft_tokens, **lengths}
    if runner == "v1":
        raise ValueError(f"rollout.engine.speculation={wanted} needs a GPU; set ngram or off")
    heads = model if config.draft_heads is None else Path(config.draft_heads)
    if not has_heads(heads):
        raise ValueError(
            f"rollout.engine.speculation={wanted}: {heads} has no draft heads; set rollout.engine.draft_heads to the "
            "model before training, or set ngram or off"
        )
    return {"method": wanted, "model": str(heads), "num_speculative_tokens": config.draft_tokens}


def has_heads(directory: Path) -> bool:
    """Return whether a model has weights of draft heads: by name, or as layers after the last one."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    layers = int(config.get("text_config", config).get("num_hidden_layers", 0))
    for name in tensor_names(directory):
        layer = re.search(r"\blayers\.(\d+)\.", name)
        if re.search(r"\bmtp", name) or (layer is not None and int(layer[1]) >= layers):
            return True
    return False
