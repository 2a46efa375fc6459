"""vLLM's second model runner, the default on GPUs: the same, and drafts."""

from gpu.machine import on_gpu
from gpu.measure import Report
from gpu.runners import compare, measure


def run(report: Report, *, small: bool) -> None:
    """Verify it, then measure it, on a GPU alone: vLLM's build for CPUs has no Triton."""
    if not on_gpu():
        report.note("it needs Triton, which vLLM's build for CPUs does not have: nothing of it runs here")
        return
    compare(report, runner="v2", small=small)
    measure(report, runner="v2", small=small)
