"""How the learner computes: precision, partitioning, the size of its passes; and the learning rates by size of model.

Memory is estimated: weights, gradients and the optimiser's state by ZeRO stage (Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", 2020, section 3, with gradients in float32), and the activations
that a block keeps (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, eq. 2 without
attention's scores, which fused kernels don't keep).
"""

from temper.learner.config import Offload
from temper.orchestrator.pipeline.profiles.asked import ProfiledSettings, stages_with
from temper.orchestrator.pipeline.profiles.place import Place, power_of_two

STATES_FILL = 0.6
"""Share of a rank's memory that weights, gradients and the optimiser's state may take."""
WEIGHTS, GRADIENTS, MOMENTS = 2, 4, 12
"""Bytes a parameter: in bfloat16; in float32; the float32 weights and AdamW's two moments."""
KEPT, KEPT_RECOMPUTED = 34, 2
"""Bytes that a block keeps of each entry of a token's hidden state for the backward pass, and where it is computed again."""
LOGITS_SHARE = 0.06
"""Share of a rank's memory that logits may take, in float32; their gradient takes as much."""
CPU_PASS = 2048
"""Tokens in one pass of a rank on a CPU."""
RATES = (
    (300e6, {"rl": 1e-5, "supervised": 1e-4, "dpo": 5e-6}),
    (5e9, {"rl": 2e-6, "supervised": 2e-5, "dpo": 1e-6}),
    (float("inf"), {"rl": 1e-6, "supervised": 1e-5, "dpo": 5e-7}),
)
"""Learning rates of AdamW by parameters, as they are usual: 1e-6 in reinforcement of 7 to 32 B (DeepSeekMath, 2024; DAPO,
2025), about 1e-5 supervised and 5e-7 in DPO of 8 B (Tulu 3, 2024). Where to begin, not what was found best here. A stage that
is not named learns as a supervised one does."""
ADAPTERS = 10
"""Times the learning rate of full training that adapters take (Schulman et al., "LoRA Without Regret", 2025)."""


def choose_learning(asked: ProfiledSettings, place: Place) -> None:
    """Choose how the learner computes, and its learning rates."""
    _precision(asked, place)
    if place.gpu:
        _partitioning(asked, place)
        _passes(asked, place)
    else:
        asked.take("learner.micro_batch_tokens", CPU_PASS)
    _rates(asked, place)


def _precision(asked: ProfiledSettings, place: Place) -> None:
    """Choose bfloat16 for learner, engines and pushes on GPUs, float32 for small models and where Muon, at stage 0, asks it."""
    plain = not place.gpu or place.toy or asked.any_stage("optim.kind", "muon")
    stage = asked.value("learner.zero_stage") if asked.gives("learner.zero_stage") else None
    bf16 = asked.take("learner.bf16", not plain and stage != 0)
    asked.take("rollout.engine.dtype", "bfloat16" if bf16 else "float32")
    asked.take("learner.wire_dtype", "bfloat16" if bf16 else "float32")


def _partitioning(asked: ProfiledSettings, place: Place) -> None:
    """Choose the lowest ZeRO stage whose states fit; the optimiser's in main memory where none does."""
    if not asked.value("learner.bf16"):
        return
    ranks, room = int(asked.value("learner.ranks")), STATES_FILL * place.gpu_bytes
    fitting = [stage for stage in (1, 2, 3) if state_bytes(asked, place, stage=stage) <= room]
    stage = asked.take("learner.zero_stage", fitting[0] if fitting else 3)
    moments = MOMENTS * place.shape.parameters
    spare = place.hardware.memory_gib * 2**30 * 0.6 * min(1.0, place.hardware.gpus_together / ranks)
    wanted: Offload = "cpu" if not fitting and stage and moments <= spare else "none"
    asked.take("learner.offload", wanted)


def state_bytes(asked: ProfiledSettings, place: Place, *, stage: int) -> float:
    """Return what a rank keeps of weights, gradients and the optimiser's state; of adapters only the frozen weights count."""
    count, ranks = place.shape.parameters, int(asked.value("learner.ranks"))
    if asked.value("learner.lora.rank"):
        return WEIGHTS * count / (ranks if stage == 3 else 1)
    moments = 0 if asked.value("learner.offload") == "cpu" else MOMENTS
    whole = {0: WEIGHTS + GRADIENTS + moments, 1: WEIGHTS + GRADIENTS, 2: WEIGHTS, 3: 0}[stage]
    shared = WEIGHTS + GRADIENTS + moments - whole
    return count * (whole + shared / ranks)


def _passes(asked: ProfiledSettings, place: Place) -> None:
    """Choose the tokens of a pass, and whole layers computed again where the longest sequence would not fit otherwise."""
    shape, longest = place.shape, int(asked.value("rollout.limits.total_tokens"))
    logits = LOGITS_SHARE * place.gpu_bytes
    asked.take("learner.logit_tokens", power_of_two(logits / (4 * shape.vocabulary), least=256, most=4096))
    states = state_bytes(asked, place, stage=int(asked.value("learner.zero_stage")))
    left = max(0.0, place.gpu_bytes - states - 2 * logits)
    plain = left / (KEPT * shape.hidden * shape.blocks)
    again = left / ((KEPT_RECOMPUTED * shape.blocks + KEPT) * shape.hidden)
    kind = asked.take("learner.recompute", "none" if plain >= longest else "full")
    if kind == "full":
        asked.take("learner.shared_prompts", False)
    fitting = again if kind == "full" else plain
    asked.take("learner.micro_batch_tokens", power_of_two(fitting, least=1024, most=32768))


def _rates(asked: ProfiledSettings, place: Place) -> None:
    """Choose the learning rate of every stage by the size of the model, ten times that for adapters; small ones keep theirs."""
    if place.toy:
        return
    rates = next(rates for most, rates in RATES if place.shape.parameters < most)
    factor = ADAPTERS if asked.value("learner.lora.rank") else 1
    for stage in stages_with("optim.learning_rate"):
        rate = rates.get(stage, rates["supervised"])
        asked.take(f"{stage}.optim.learning_rate", float(f"{rate * factor:.3g}"))
