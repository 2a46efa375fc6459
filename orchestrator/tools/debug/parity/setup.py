"""What a comparison is made with: an engine, a trainer, a way of sampling; and what the model is."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import transformers

from temper.learner.config import LearnerConfig
from temper.learner.models.shape import WITHOUT_STATE
from temper.rollout.engines.config import EngineConfig
from temper.rollout.sampling import PLAIN, Sampling

USUAL = {"mamba_ssm_cache_dtype": "float32", "kv_cache_dtype": "auto"}
"""vLLM's own settings as they are where nothing is given (`rollout/engines/vllm_settings.py`)."""
EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
"""What configurations call the number of experts."""
MAMBA_FAMILIES = ("mamba", "bamba", "falcon_h1", "granitemoehybrid")
"""Families with Mamba layers whose configuration lists no types of layers for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that a gap can come from."""

    engine: EngineConfig
    learner: LearnerConfig
    sampling: Sampling = PLAIN

    @property
    def wire_rounds(self) -> bool:
        """Whether a push rounds the weights to less than what the trainer has and the engine computes in."""
        return self.wire_is_lower and self.engine.dtype != self.learner.wire_dtype

    @property
    def wire_is_lower(self) -> bool:
        """Whether weights travel in a type that does not hold what the trainer has."""
        wire = self.learner.wire_dtype
        return wire != "float32" and not (self.learner.bf16 and wire == "bfloat16")

    @property
    def engine_key(self) -> str:
        """What engines that were started alike have in common, whether or not a setting was written as it is anyway."""
        extra = {key: value for key, value in self.engine.extra.items() if USUAL.get(key) != value}
        wire = self.learner.wire_dtype if self.wire_rounds else None
        parts = [asdict(self.engine) | {"extra": extra}, self.learner.router_replay, self.learner.float32_head, wire]
        return json.dumps(parts, sort_keys=True, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What there is to have a gap from: states of Mamba layers, experts, a GPU."""

    mamba: bool
    experts: bool
    gpu: bool


def facts_of(directory: Path, *, gpu: bool) -> Facts:
    """Return the facts of a model directory."""
    whole = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
    config = vars(whole.get_text_config(decoder=True))
    types: list[Any] = config.get("layers_block_type") or config.get("layer_types") or []
    family = str(config.get("model_type", whole.model_type))
    return Facts(
        mamba=any(kind not in WITHOUT_STATE for kind in types) or family.startswith(MAMBA_FAMILIES),
        experts="moe" in types or (any((config.get(name) or 0) > 1 for name in EXPERT_COUNTS) and not types),
        gpu=gpu,
    )
