"""What a verifier says about an answer: an outcome and named reward parts."""

from dataclasses import dataclass, field
from enum import Enum

from rewards.parts import CORRECT, FORMAT


class Outcome(Enum):
    """How an episode ended for the model. All of them carry a real reward."""

    OK = "ok"  # the answer is right
    WRONG = "wrong"  # the answer is wrong, missing or malformed
    POLICY_FAULT = "policy_fault"  # the model's own program ran out of a limit, crashed or did what is forbidden
    CUT = "cut"  # a limit on turns or tokens ended it; the reward is what the environment says that it is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one answer; `detail` is one line for people, `evidence` how it was reached (grader, isolation)."""

    outcome: Outcome
    parts: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    evidence: dict[str, str | float] = field(default_factory=dict)


def verdict(correct: bool, *, well_formed: bool = True, detail: str = "") -> Verdict:
    """Right or wrong, with the parts `correct` and `format`."""
    parts = {CORRECT: float(correct), FORMAT: float(well_formed)}
    return Verdict(outcome=Outcome.OK if correct else Outcome.WRONG, parts=parts, detail=detail)


def policy_fault(detail: str) -> Verdict:
    """The model's own doing: no credit."""
    return Verdict(outcome=Outcome.POLICY_FAULT, parts={CORRECT: 0.0, FORMAT: 1.0}, detail=detail)
