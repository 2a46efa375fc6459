"""Which of vLLM's two model runners an engine has, and whether it guesses tokens ahead.

The second runner samples and limits thoughts without a look at single requests, and it is what vLLM develops. Its kernels are
Triton's, which is why the first has to do on a CPU; and it records no experts in pipelines of processes.
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
"""Tokens at a sequence's end that are looked for in what stands before them: what followed there is the draft."""


def choose_runner(wanted: Runner = "auto", *, triton: bool, records_pipeline: bool = False) -> RunnerName:
    """Return the runner of an engine, which may have to record the experts of a pipeline of processes; is there a `triton`?

    Raises `ValueError` where the one that is set can't do what is wanted.
    """
    why_first = ""
    if not triton:
        why_first = "it needs Triton, which vLLM's CPU build has not"
    elif records_pipeline:
        why_first = "it records no experts for learner.router_replay with rollout.engine.pipeline_parallel"
    if wanted == "v2" and why_first:
        raise ValueError(f"rollout.engine.runner=v2: {why_first}; leave it at auto")
    return "v1" if why_first or wanted == "v1" else "v2"


def set_runner(runner: RunnerName) -> None:
    """Let the engines that this process starts from now on have this runner."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner == "v2"))


def speculative_config(
    config: EngineConfig, runner: RunnerName, model: Path, *, record_experts: bool = False, on_cpu: bool = ON_CPU
) -> dict[str, Any] | None:
    """Return vLLM's `speculative_config` for a model directory; None where nothing is guessed.

    Raises `ValueError` for what the runner or the model can't do.
    """
    wanted = config.speculation
    if wanted == "off":
        return None
    if record_experts:
        raise ValueError(f"rollout.engine.speculation={wanted}: not with learner.router_replay; set it to off")
    if runner == "v1" and not on_cpu:
        raise ValueError(f"rollout.engine.speculation={wanted}: on a GPU it needs rollout.engine.runner=v2, or auto")
    if wanted == "ngram":
        kind = "ngram" if runner == "v1" else "ngram_gpu"
        lengths = {"prompt_lookup_min": SHORTEST, "prompt_lookup_max": LONGEST}
        return {"method": kind, "num_speculative_tokens": config.draft_tokens, **lengths}
    if runner == "v1":
        raise ValueError(f"rollout.engine.speculation={wanted} needs a GPU; set ngram, or off")
    heads = model if config.draft_heads is None else Path(config.draft_heads)
    if not has_heads(heads):
        raise ValueError(
            f"rollout.engine.speculation={wanted}: {heads} has no heads for the tokens behind the next; name the model as it "
            "was before training with rollout.engine.draft_heads, or set ngram or off"
        )
    return {"method": wanted, "model": str(heads), "num_speculative_tokens": config.draft_tokens}


def has_heads(directory: Path) -> bool:
    """Return whether a model has weights of heads for the tokens behind the next: named so, or layers behind the last."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    layers = int(config.get("text_config", config).get("num_hidden_layers", 0))
    for name in tensor_names(directory):
        layer = re.search(r"\blayers\.(\d+)\.", name)
        if re.search(r"\bmtp", name) or (layer is not None and int(layer[1]) >= layers):
            return True
    return False
