"""What a rank of the learner has on its device, part by part.

Weights, gradients and states by ZeRO stage (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", section 3, 2020), with what DeepSpeed keeps beside them when gradients are added up in float32: at stage 1 the whole
gradient, from stage 2 on its share; at stage 3 a bucket through which it is shared out. In float32 every stage but 0 has a
copy of the weights of its own. That is what a rank's tensors were measured to be, on CPUs.
"""

from dataclasses import dataclass

from temper.learner.config import LearnerConfig, OptimConfig
from temper.orchestrator.tools.preflight.plan.memory.layers import FLOAT32
from temper.orchestrator.tools.preflight.plan.model import PlannedModel

MOMENTS = 8
"""Bytes of AdamW's two moments."""
BUCKET = 500_000_000
"""Most parameters in DeepSpeed's bucket for gradients, as the learner sets it."""
LOGIT_BYTES = 14
"""Bytes that a scored token takes for each entry of the vocabulary while its gradient is made: logarithms, probabilities and
gradient in float32, and the gradient as the output layer takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of a rank by part; on a CPU in main memory."""

    weights: int
    gradients: int
    optimiser: int
    """Its states, and the float32 weights beside those of the passes."""
    buckets: int
    """What gradients go through on their way to other ranks."""
    gathered: int
    """At stage 3 the layer that is computed and the one after it, whole."""
    reference: int
    """The weights of a reference or a teacher."""
    activations: int
    """What a pass of `pass_tokens` keeps for its backward pass."""
    logits: int
    pass_tokens: int
    offloaded: int
    """What lies in main memory instead, at `learner.offload=cpu`."""
    on_disk: int
    """What lies on the disk instead, at nvme."""
    push: int
    """Copies of the weights that a push keeps on the device, by `cuda_ipc`."""
    overhead: int
    loading: int
    """Bytes while the model is loaded: at stage 3 DeepSpeed has all of it on each GPU before it partitions it. A reference
    or a teacher follows the model itself."""

    @property
    def states(self) -> int:
        """What is there between two passes."""
        return self.weights + self.gradients + self.optimiser + self.reference + self.push + self.overhead

    @property
    def moved(self) -> int:
        """What is put aside where an engine takes the device in turns: all of that but what no one can move."""
        return self.states - self.overhead

    @property
    def peak(self) -> int:
        """The bytes in the middle of a backward pass, or while the model is loaded."""
        return max(self.loading, self.states + self.buckets + self.gathered + self.activations + self.logits)


def rank_memory(
    model: PlannedModel,
    learner: LearnerConfig,
    optim: OptimConfig,
    *,
    pass_tokens: int,
    gpu: bool,
    reference: int = 0,
    push: int = 0,
    overhead: int = 0,
) -> RankMemory:
    """Return what a rank takes whose longest pass has so many tokens, beside a reference or a teacher of so many parameters."""
    stage, ranks, trained = learner.zero_stage, learner.ranks, model.trained
    held = model.parameters + (trained if learner.lora.rank else 0)
    width = 2 if learner.bf16 else FLOAT32
    share = ranks if stage else 1
    master = FLOAT32 * trained // share if stage else 0
    states = master + _moments(model, optim, trained) // share
    away = learner.offload != "none"
    gradients = FLOAT32 * trained // (ranks if stage >= 2 or away else 1)
    weights = width * held // (ranks if stage == 3 else 1)
    frozen = width * reference // (ranks if stage == 3 else 1)
    moved = (states + gradients + (weights + frozen if stage == 3 else 0)) if away else 0
    kept = (0 if away else gradients + states) + (0 if away and stage == 3 else weights)
    whole = max(width * held, kept + width * reference if reference else 0)
    return RankMemory(
        weights=0 if away and stage == 3 else weights,
        gradients=0 if away else gradients,
        optimiser=0 if away else states,
        loading=overhead + whole if gpu and stage == 3 else 0,
        buckets=FLOAT32 * min(held, BUCKET) if stage == 3 or (stage and ranks > 1) else 0,
        gathered=2 * width * model.largest_layer if stage == 3 and ranks > 1 else 0,
        reference=0 if away and stage == 3 else frozen,
        activations=activations(model, learner, pass_tokens=pass_tokens, gpu=gpu),
        logits=logits(model, learner, pass_tokens=pass_tokens),
        pass_tokens=pass_tokens,
        offloaded=moved if learner.offload == "cpu" else 0,
        on_disk=moved if learner.offload == "nvme" else 0,
        push=push,
        overhead=overhead,
    )


def _moments(model: PlannedModel, optim: OptimConfig, trained: int) -> int:
    """Return the bytes of the optimiser's running means: Muon has one for the matrices inside the layers."""
    if optim.kind == "adamw":
        return MOMENTS * trained
    ends = model.parts.get("embedding", 0) + model.parts.get("output layer", 0)
    return MOMENTS * ends + MOMENTS // 2 * max(0, trained - ends)


def activations(model: PlannedModel, learner: LearnerConfig, *, pass_tokens: int, gpu: bool) -> int:
    """Return the bytes that a pass of so many tokens keeps. Whole layers that are computed again keep their input alone, and
    one at a time all of its own.
    """
    width = 2 if learner.bf16 else FLOAT32
    each = [layer.kept_bytes(width=width, gpu=gpu, scans=learner.recompute != "selective") for layer in model.layers]
    if learner.recompute == "full":
        return pass_tokens * (width * model.shape.hidden * len(each) + max(each))
    return pass_tokens * sum(each)


def logits(model: PlannedModel, learner: LearnerConfig, *, pass_tokens: int) -> int:
    """Return the bytes of the logits that exist at once, and of what is made of them; where they come in pieces, the gradient
    of the output layer in float32 too.
    """
    rows = min(pass_tokens, learner.logit_tokens)
    pieces = FLOAT32 * model.shape.vocabulary * model.shape.hidden if pass_tokens > rows else 0
    return LOGIT_BYTES * rows * model.shape.vocabulary + pieces
