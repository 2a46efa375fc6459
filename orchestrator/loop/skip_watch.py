"""Ends a stage whose steps change nothing, one after the other: never a run that trains to its end in vain."""

from collections.abc import Iterable


class NothingTrained(RuntimeError):
    """Step after step was skipped."""


class SkipWatch:
    """Counts skipped steps in a row: loss or gradient was not finite, or nothing was left to train on."""

    def __init__(self, most: int, *, stage: str) -> None:
        """`most` is `learner.max_skipped`."""
        self._most = most
        self._stage = stage
        self._skipped: list[int] = []

    def restore(self, steps: Iterable[tuple[int, bool]]) -> None:
        """Count the steps of a run that goes on, each with whether it was skipped."""
        self._skipped = []
        for step, skipped in steps:
            self._count(step, skipped=skipped)

    def add(self, step: int, *, skipped: bool, evidence: str) -> None:
        """Count a step; raise `NothingTrained` with the steps and the evidence of it once too many were skipped."""
        self._count(step, skipped=skipped)
        if len(self._skipped) >= self._most:
            raise NothingTrained(
                f"{self._stage}: steps {self._skipped[0]} to {step} were skipped one after the other "
                f"(learner.max_skipped={self._most}): loss or gradient was not finite, or nothing was left to train on; "
                f"{evidence}"
            )

    def _count(self, step: int, *, skipped: bool) -> None:
        self._skipped = [*self._skipped, step] if skipped else []
