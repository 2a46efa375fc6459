"""vLLM's first model runner: log-probabilities and limits of thoughts, and tokens a second."""

from gpu.measure import Report
from gpu.runners import compare, measure


def run(report: Report, *, small: bool) -> None:
    """Verify it, then measure it."""
    compare(report, runner="v1", small=small)
    measure(report, runner="v1", small=small)
