"""Each transport of this machine: bytes a second, and the load into a running engine.

Broadcast uses gloo between CPUs, because NCCL needs a GPU for each of its two ends.
"""

from bench.push import bench_push, usable_transports
from gpu.measure import Report

from temper.rollout.weights.config import TRANSPORTS

SHOWN = {
    "gb_per_s": ("published and received", "GB/s"),
    "times_memory_copy": ("over a copy in main memory", "times as long"),
    "load_s": ("load into a running engine", "s"),
}
"""Labels of the reported `tests/bench/push.py` figures."""
WAYS = {"broadcast": "broadcast by gloo between CPUs"}
"""Labels of the transports with unclear names."""


def run(report: Report, *, small: bool) -> None:
    """Measure each layout in turn and verify each received push by its checksum."""
    report.note("weights from main memory; broadcast by gloo between CPUs, since by NCCL it needs a GPU for each end")
    for name in sorted(set(TRANSPORTS) - set(usable_transports())):
        report.note(f"{name}: not on this machine")
    sizes, engines = (["1M"], ["1M"]) if small else (["1B"], ["100M"])
    for group, figures in bench_push(sizes, wire_dtype="bfloat16", engines=engines):
        size, way = group.split("/")
        for name, (words, unit) in SHOWN.items():
            if name in figures:
                report.figure(f"{WAYS.get(way, way)}, {size}: {words}", figures[name], unit)
