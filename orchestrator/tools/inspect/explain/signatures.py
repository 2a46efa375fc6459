"""Known collapses, each by its signature over the metrics of a stage: a new one is a function and a line in `SIGNATURES`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temper.orchestrator.tools.inspect.explain.courses import Course
from temper.orchestrator.tools.inspect.explain.evidence import (
    LAG,
    Evidence,
    change,
    fall,
    first_over,
    parted_since_best,
    parting,
    steadiness,
)

FAR = 0.05
"""Mean |log pi - log mu| in nats at which engine and trainer are no longer about the same policy: a ratio of 1.05."""
CLEAR = 2.0
"""Times the difference that the same weights show, above which one is of weights that moved."""
STEADY = 0.8
"""Rank correlation with the step."""
PARTING = 0.1
"""How far a reward rises above what it should be worth before that is said."""
GAP = "train/logprob_gap"
ENTROPY = "train/entropy"
NORM = "train/grad_norm"
SIGNAL = "rollout/signal"
LEFT_OUT = ("train/guarded", "train/importance_truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One thing that a signature looks at. `needed`: without it the collapse is not this one. `step` is where it is seen."""

    text: str
    holds: bool
    needed: bool = False
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A known collapse: what it is called, the metrics it is seen in, what it is, what to do, and its signs in a stage."""

    name: str
    looks_at: tuple[str, ...]
    sentence: str
    remedy: str
    signs: Callable[[Evidence], Sequence[Sign]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A collapse whose needed signs all hold. `score` is the share of all its signs that hold, 0 to 1."""

    name: str
    sentence: str
    remedy: str
    signs: tuple[str, ...]
    score: float
    step: int | None


def diagnoses(evidence: Evidence) -> list[Diagnosis]:
    """Return the collapses whose needed signs hold, first that of which the largest share of signs holds, then the earliest."""
    found = []
    for signature in SIGNATURES:
        signs = signature.signs(evidence)
        if not signs or not all(sign.holds for sign in signs if sign.needed):
            continue
        held = [sign for sign in signs if sign.holds]
        found.append(
            Diagnosis(
                name=signature.name,
                sentence=signature.sentence,
                remedy=signature.remedy,
                signs=tuple(sign.text for sign in held),
                score=len(held) / len(signs),
                step=min((sign.step for sign in held if sign.step is not None), default=None),
            )
        )
    return sorted(found, key=lambda one: (-one.score, one.step if one.step is not None else 0))


def wrong_precision(evidence: Evidence) -> Sequence[Sign]:
    """Look for a difference of engine and trainer in the very step in which they have the same weights."""
    gap = evidence.course(GAP)
    if gap is None:
        return ()
    alike = [(value, step) for value, lag, step in evidence.by_lag(GAP) if lag == 0]
    least, place = min(alike, default=(0.0, None))
    limit = evidence.expected_gap
    return (
        Sign(
            text=f"{GAP} is {least:.2g} nats or more where engine and trainer have the same weights (step {place}); "
            f"precision explains {limit:g}",
            holds=least > limit,
            needed=True,
            step=alike[0][1] if alike else None,
        ),
        Sign(
            text=f"it was so from the first step on, and later steps are of the same size (median {gap.last:.2g})",
            holds=least > 0 and gap.last < 10 * least,
        ),
    )


def stale_engine(evidence: Evidence) -> Sequence[Sign]:
    """Look for a gap that grows with every update, while what is sampled does not change with it."""
    gap, entropy = evidence.course(GAP), evidence.course(ENTROPY)
    if gap is None or entropy is None:
        return ()
    step = first_over(gap, FAR)
    rewards = [course for env in evidence.envs if (course := evidence.course(f"env/{env}/reward")) is not None]
    moved = [course.name for course in rewards if abs(change(course)) > 3]
    left_out = [one for name in LEFT_OUT if (one := evidence.course(name)) is not None]
    lag = evidence.course(LAG)
    most = evidence.settings.get("max_lag", 1)
    behind = lag is not None and lag.last > most
    text = f"tokens are recorded {lag.last if lag else 0:.1f} versions behind, max_lag is {most}"
    behind_signs = (Sign(text=text, holds=True),) if behind else ()
    return (
        Sign(
            text=f"{GAP} grows steadily, from {gap.first:.2g} to {gap.last:.2g} nats (rank correlation with the step "
            f"{steadiness(gap):.2f})",
            holds=steadiness(gap) > STEADY and gap.last > FAR,
            needed=True,
            step=step,
        ),
        Sign(
            text="what is sampled stays as it was while the trainer moves away from it: no reward changes",
            holds=not moved,
            needed=not behind,
        ),
        Sign(
            text=f"what is sampled becomes ever less likely to the trainer ({ENTROPY} from {entropy.first:.2g} to "
            f"{entropy.last:.2g})",
            holds=change(entropy) > 3,
        ),
        Sign(
            text="tokens are left out, or count less, as too far from what the engine computed ("
            + ", ".join(LEFT_OUT)
            + ")",
            holds=any(one.first == 0 < one.last for one in left_out),
        ),
        *behind_signs,
    )


def broken_reward(evidence: Evidence) -> Sequence[Sign]:
    """Look for a reward that rises where being right does not, in the environment with most signs of it."""
    best: Sequence[Sign] = ()
    for env in evidence.envs:
        reward, correct, worth = (
            evidence.course(f"env/{env}/reward"),
            evidence.course(f"env/{env}/correct"),
            evidence.worth(env),
        )
        if reward is None or correct is None or worth is None:
            continue
        lost = fall(correct)
        apart, unexplained = _apart(reward, correct), _apart(reward, worth)
        traded = lost is not None and parted_since_best(reward, correct) > PARTING
        falls = (
            f"; while `correct` falls from {lost[0]:.2g} to {lost[1]:.2g} the reward rises" if lost and traded else ""
        )
        signs = (
            Sign(
                text=f"{env}: the reward rises, from {reward.first:.2g} to {reward.last:.2g}",
                holds=change(reward) > 2 and reward.last - reward.first > PARTING / 2,
                needed=True,
            ),
            Sign(
                text=f"{env}: it parts from `correct` by {apart:+.2g}, of which the weights of its parts explain "
                f"{apart - unexplained:+.2g}{falls}",
                holds=unexplained > PARTING or traded,
                needed=True,
                step=parting(reward, correct),
            ),
            Sign(
                text=f"{env}: `correct` does not rise with it ({correct.first:.2g} to {correct.last:.2g})",
                holds=change(correct) <= 2,
            ),
        )
        if not best or sum(sign.holds for sign in signs) > sum(sign.holds for sign in best):
            best = signs
    return best


def _apart(reward: Course, other: Course) -> float:
    """Return how much further above the other course the reward is at its end than at its beginning."""
    return (reward.last - reward.first) - (other.last - other.first)


def rate_too_high(evidence: Evidence) -> Sequence[Sign]:
    """Look for updates that move the policy far, and for what it could do before and lost afterwards."""
    gap, norm, entropy = (evidence.course(name) for name in (GAP, NORM, ENTROPY))
    signal, measured = evidence.course(SIGNAL), evidence.by_lag(GAP)
    behind = [one for one in measured if one[1] > 0]
    if gap is None or norm is None or not behind:
        return ()
    same = min((value for value, lag, _ in measured if lag == 0), default=0.0)
    limit = max(FAR, CLEAR * max(same, evidence.expected_gap))
    largest, lag, at = max(behind)
    moved = Course(name=GAP, steps=tuple(step for _, _, step in behind), values=tuple(value for value, _, _ in behind))
    falls = [
        (env, lost)
        for env in evidence.envs
        if (course := evidence.course(f"env/{env}/correct")) is not None and (lost := fall(course)) is not None
    ]
    step = next((step for value, _, step in behind if value > limit), None)
    env, lost = min(falls, key=lambda one: one[1][2]) if falls else ("", (0.0, 0.0, 0))
    spread = max(norm.values) / norm.first if norm.first else 1.0
    return (
        Sign(
            text=f"updates move the policy far: {GAP} up to {largest:.2g} nats, at a lag of {lag:.2g} pushes (step {at})",
            holds=largest > limit and steadiness(moved) <= STEADY,
            needed=True,
            step=step,
        ),
        Sign(
            text=f"what was learnt is lost: {env} is right in {lost[0]:.0%} of its answers, then in {lost[1]:.0%} (half-way at "
            f"step {lost[2]})",
            holds=bool(falls),
            needed=True,
            step=lost[2] if falls else None,
        ),
        Sign(
            text=f"the divergence comes first, at step {step}",
            holds=bool(falls) and step is not None and step < lost[2],
        ),
        Sign(
            text=f"{NORM} leaves its range (first {norm.first:.2g}, highest {max(norm.values):.2g}, last {norm.last:.2g})",
            holds=spread > 5 or norm.last < 0.1 * norm.first,
        ),
        Sign(
            text="answers to a task become all alike" + _course(signal),
            holds=(signal is not None and signal.last < 0.25 * signal.first)
            or (entropy is not None and entropy.last < 0.25 * entropy.first),
        ),
    )


def _course(course: Course | None) -> str:
    return "" if course is None else f" ({course.name} {course.first:.2g} to {course.last:.2g})"


SIGNATURES = (
    Signature(
        name="wrong precision",
        looks_at=(GAP, LAG),
        sentence="Engine and trainer compute different numbers from the same weights.",
        remedy="give both one precision: rollout.engine.dtype, learner.bf16, learner.wire_dtype; on expert models "
        "learner.router_replay; a gap of float32 is below 1e-4 in the first step",
        signs=wrong_precision,
    ),
    Signature(
        name="stale engine",
        looks_at=(GAP, ENTROPY, *LEFT_OUT, LAG, "env/*/reward"),
        sentence="The engines sample with weights that no longer follow the trainer's.",
        remedy="look at what carries the weights (learner.transport) and at push/* in metrics.jsonl; start it again, "
        "and the engines load the newest checkpoint; where versions are recorded behind, lower rl.max_lag or rl.over_sampling",
        signs=stale_engine,
    ),
    Signature(
        name="broken reward",
        looks_at=("env/*/reward", "env/*/correct"),
        sentence="The reward pays for something else than being right.",
        remedy="open the groups below in the viewer and read why each answer got its reward; then mend the verifier or "
        "envs.NAME.weights, judge the recorded answers again by `temper regrade`, and fork from a checkpoint before it",
        signs=broken_reward,
    ),
    Signature(
        name="learning rate too high",
        looks_at=(GAP, LAG, NORM, "env/*/correct", SIGNAL, ENTROPY),
        sentence="Updates are so large that they undo what was learnt.",
        remedy="fork from a checkpoint before it with a lower rl.optim.learning_rate (a third, then a tenth), or a longer "
        "rl.optim.warmup_steps",
        signs=rate_too_high,
    ),
)
"""All that is known; the order means nothing."""
