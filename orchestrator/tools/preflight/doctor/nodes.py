"""The nodes of a cluster: same code, disk space, and mutual connections."""

from collections.abc import Iterator, Sequence

from temper.orchestrator.cluster.node_facts import NodeReport, query_nodes
from temper.orchestrator.cluster.this_machine import PACKAGE, PORTS
from temper.orchestrator.pipeline.estimate.limits import LEAST_SHM, size
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget

LEAST_DISK = 0.05
"""Free share of a disk below which Ray stores no objects on it. Objects that exceed its memory are then lost."""


def inspect_nodes(target: CheckTarget) -> Iterator[Finding]:
    """Query every node of the cluster in RAY_ADDRESS. Without a cluster there are no findings."""
    if target.joins:
        yield from check_nodes(query_nodes())


def check_nodes(nodes: Sequence[NodeReport]) -> Iterator[Finding]:
    """Compare the nodes with the driver's node, which is the first, and check each for faults."""
    found = [one for node in nodes for one in _check_node(node, like=nodes[0])]
    yield from found
    first = nodes[0].facts
    if not found and first is not None:
        versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
        yield ok(f"{len(nodes)} nodes reach each other with {versions} and the same code")


def _check_node(node: NodeReport, *, like: NodeReport) -> Iterator[Finding]:
    at, facts = node.address, node.facts
    if facts is None:
        yield failure(f"{at}: {node.fault}", f"start Ray on it in an environment with Temper, as at {PACKAGE}")
        return
    if like.facts is not None:
        pairs = ((name, version, like.facts.versions[name]) for name, version in facts.versions.items())
        others = [f"{name} {here} instead of {wanted}" for name, here, wanted in pairs if here != wanted]
        if others:
            message = f"{at} has other versions than {like.address}: {', '.join(others)}"
            yield failure(message, "run make setup on it, in the same checkout")
        if facts.code != like.facts.code:
            message = f"{at} has other code than {like.address}: {facts.code} in place of {like.facts.code}"
            yield failure(message, "check out the same commit on it")
    for other in node.unreached:
        ports = f"open the ports {PORTS.start} to {PORTS.stop - 1} between the machines"
        yield failure(f"{at} can't connect to {other}", ports)
    if facts.shm_bytes is not None and facts.shm_bytes < LEAST_SHM:
        message = f"/dev/shm of {at} has {size(facts.shm_bytes)} free for Ray's objects"
        yield warning(message, "make it larger (in a container --shm-size=8g)")
    yield from check_temporary_disk(
        f"the disk of temporary files of {at}", free=facts.disk_bytes, share=facts.disk_share
    )


def check_temporary_disk(disk: str, *, free: int, share: float) -> Iterator[Finding]:
    if share < LEAST_DISK:
        yield warning(
            f"{disk} has {size(free)} free, {share:.1%} of it",
            "free some space, or set another folder: TMPDIR, or --temp-dir of ray start",
        )
