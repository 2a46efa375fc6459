"""Each way of pushing weights that this machine has: bytes a second, and the load into a running engine."""

from orchestrator.bench.push import bench_push
from orchestrator.gpu_check.part import Report
from rollout.weights.transports.catalog import TRANSPORTS

SHOWN = {
    "gb_per_s": ("published and received", "GB/s"),
    "times_memory_copy": ("over a copy in main memory", "times as long"),
    "load_s": ("load into a running engine", "s"),
}
"""The figures of `orchestrator/bench/push.py` that are told, in words."""


def run(report: Report, *, small: bool) -> None:
    """Measure them, one after the other; what is received is verified by its checksum in every one."""
    sizes, engines = (["1M"], ["1M"]) if small else (["1B"], ["100M"])
    found = bench_push(sizes, wire_dtype="bfloat16", engines=engines, sparse=False)
    for key, value in found.items():
        size, way, name = key.split("/")
        if name in SHOWN:
            words, unit = SHOWN[name]
            report.figure(f"{way}, {size}: {words}", value, unit)
    for name in TRANSPORTS:
        if not any(f"/{name}/" in key for key in found):
            report.note(f"{name}: not on this machine")
