"""vLLM's first model runner: log-probabilities and limits of thoughts, and tokens a second."""

from temper.orchestrator.tools.gpu_check.engines import measure
from temper.orchestrator.tools.gpu_check.parity import compare
from temper.orchestrator.tools.gpu_check.part import Report


def run(report: Report, *, small: bool) -> None:
    """Verify it, then measure it."""
    compare(report, runner="v1", small=small)
    measure(report, runner="v1", small=small)
