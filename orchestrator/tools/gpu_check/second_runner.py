"""vLLM's second model runner, which is what GPUs have by default: the same, and drafts."""

from temper.orchestrator.tools.gpu_check.engines import measure
from temper.orchestrator.tools.gpu_check.machine import on_gpu
from temper.orchestrator.tools.gpu_check.parity import compare
from temper.orchestrator.tools.gpu_check.part import Report


def run(report: Report, *, small: bool) -> None:
    """Verify it, then measure it, where there is a GPU: its kernels are Triton's, which vLLM's build for CPUs has not."""
    if not on_gpu():
        report.note("it needs Triton, which vLLM's build for CPUs has not: nothing of it runs here")
        return
    compare(report, runner="v2", small=small)
    measure(report, runner="v2", small=small)
