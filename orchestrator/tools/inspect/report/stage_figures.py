"""The figures of each stage in a report."""

from dataclasses import dataclass

from temper.orchestrator.loop.step import StepPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure of metrics of a stage over its steps. Metrics that the run does not have are skipped."""

    title: str
    note: str
    metrics: dict[str, str]
    """Metric name to label."""
    smooth: bool = True


SHOWN_PARTS = (StepPart.WAIT, StepPart.LEARN, StepPart.PUBLISH, StepPart.EVAL, StepPart.LOAD, StepPart.SAVE)
CURVES: dict[str, tuple[Curve, ...]] = {
    "sft": (
        Curve(
            title="SFT loss",
            note="Mean negative log-likelihood per trained token, in nats.",
            metrics={"train/loss": "loss"},
        ),
    ),
    "rft": (
        Curve(
            title="Loss on the model's answers",
            note="Mean negative log-likelihood per trained token of the model's correct answers, in nats.",
            metrics={"train/loss": "loss"},
        ),
    ),
    "dpo": (
        Curve(
            title="Preference",
            note="Share of pairs whose preferred answer gained more than the rejected one, relative to the initial model.",
            metrics={"train/accuracy": "share of pairs"},
        ),
    ),
    "rl": (
        Curve(
            title="Throughput in RL",
            note="Tokens sampled per second of the whole step: waiting, learning, weights and checkpoints included.",
            metrics={"rollout/tokens_per_s": "tokens/s"},
        ),
        Curve(
            title="Trainer against engine",
            note="Mean absolute difference of the log-probabilities of sampled tokens: staleness and numerics together.",
            metrics={"train/mismatch_abs": "|log pi - log mu|"},
        ),
        Curve(
            title="Staleness",
            note="How many weight versions the groups of a step were behind their admission, and their tokens behind what "
            "sampled them.",
            metrics={"train/lag_max": "largest", "train/lag_mean": "mean", "train/lag_tokens": "mean of tokens"},
            smooth=False,
        ),
        Curve(
            title="Entropy",
            note="Mean surprise of the sampled tokens, in nats.",
            metrics={"train/entropy": "entropy"},
        ),
        Curve(
            title="Seconds of a step",
            note="The whole step, and its parts: waiting for finished groups, learning, laying weights out, waiting for an "
            "evaluation to end, engines loading weights, and checkpoints.",
            metrics={"time/step_s": "step"} | {f"time/{part.value}_s": part.value for part in SHOWN_PARTS},
        ),
    ),
    "distill": (
        Curve(
            title="Distance from the teacher",
            note="Mean of log pi - log pi_teacher over the sampled tokens, in nats: the reverse divergence of a token.",
            metrics={"train/kl": "divergence"},
        ),
    ),
}
"""The figures of a stage by its name."""
REWARDS = {
    "rl": "Mean reward of all answers, including groups with zero advantage. The bold line is a running mean.",
    "distill": "Mean reward. It is not trained on: the teacher is the signal. The bold line is a running mean.",
}
"""The caption of the reward figure, for stages that have rewards."""
