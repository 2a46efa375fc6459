"""Facts of each cluster node: installed versions, free space, and the nodes it can reach."""

import contextlib
import hashlib
import platform
import shutil
import socket
import tempfile
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ray

from temper.orchestrator.cluster.actors import to_task
from temper.orchestrator.cluster.cluster_hardware import join_cluster
from temper.orchestrator.cluster.machines import SHM
from temper.orchestrator.cluster.this_machine import CODE, PACKAGE, free_port

START_S = 120.0
"""Timeout for the first answer of the nodes. Each starts a process."""
ANSWER_S = 20.0
"""Timeout for each later answer."""
CONNECT_S = 3.0
PACKAGES = ("torch", "vllm", "ray", "transformers", "deepspeed")
"""Packages whose versions must match on all nodes, because processes exchange objects, weights and tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts of a node. Bytes are free ones."""

    versions: dict[str, str]
    """Of Python and packages; "none" if missing."""
    code: str
    """Checksum of the checkout's Python files."""
    shm_bytes: int | None
    """None without /dev/shm."""
    disk_bytes: int
    """On the disk of temporary files, for objects that Ray spills."""
    disk_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node as seen by the driver: its address and its facts, or the fault."""

    address: str
    facts: NodeFacts | None = None
    fault: str = ""
    unreached: tuple[str, ...] = ()
    """Addresses of nodes that it can't connect to, each with the reason."""


def node_facts() -> NodeFacts:
    disk = shutil.disk_usage(tempfile.gettempdir())
    return NodeFacts(
        versions={"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        code=checksum(PACKAGE),
        shm_bytes=shutil.disk_usage(SHM).free if SHM.is_dir() else None,
        disk_bytes=disk.free,
        disk_share=disk.free / disk.total,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def checksum(package: Path) -> str:
    """Return a checksum of the Python files in a checkout's folders, by path and content, without tests."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (package / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def listen(address: str) -> int:
    """Listen on a port of this node's address in a thread, until the others' timeout. Return the port."""
    port = free_port(address)
    server = socket.create_server((address, port))
    server.settimeout(ANSWER_S)

    def answer() -> None:
        with server, contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()

    threading.Thread(target=answer, daemon=True).start()
    return port


def reach(address: str, port: int) -> str:
    """Return why this node can't connect to a port; empty if it can."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_S).close()
    except OSError as error:
        return str(error)
    return ""


def query_nodes() -> list[NodeReport]:
    """Return a report of each node of the cluster of RAY_ADDRESS, the driver's first.

    Raise `ConnectionError` or `RuntimeError` if joining fails.
    """
    with join_cluster():
        here = ray.get_runtime_context().get_node_id()
        alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"] != here)
        nodes = {str(node["NodeID"]): str(node["NodeManagerAddress"]) for node in alive}
        answers = _gather({node: to_task(node_facts, node).remote() for node in nodes}, START_S)
        healthy = [node for node in nodes if not isinstance(answers[node], str)]
        unreached = _unreached({node: nodes[node] for node in healthy})
        return [
            NodeReport(address=address, facts=answers[node], unreached=unreached[node])
            if node in healthy
            else NodeReport(address=address, fault=str(answers[node]))
            for node, address in nodes.items()
        ]


def _gather(calls: dict[str, "ray.ObjectRef[Any]"], limit_s: float) -> dict[str, Any]:
    """Return each node's answer, or the reason of a failure as text."""
    ray.wait(list(calls.values()), num_returns=len(calls), timeout=limit_s)
    return {node: _answer(call, limit_s) for node, call in calls.items()}


def _answer(call: "ray.ObjectRef[Any]", limit_s: float) -> Any:
    try:
        return ray.get(call, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return f"no answer within {limit_s:.0f} s"
    except Exception as error:  # another machine may fail in any way
        return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _unreached(nodes: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the connections that fail, tested in a ring, so that each node listens and connects once."""
    ports = _gather({node: to_task(listen, node).remote(address) for node, address in nodes.items()}, ANSWER_S)
    ring = dict(zip(nodes, [*list(nodes)[1:], *list(nodes)[:1]], strict=True)) if len(nodes) > 1 else {}
    calls = {
        node: to_task(reach, node).remote(nodes[other], ports[other])
        for node, other in ring.items()
        if isinstance(ports[other], int)
    }
    results = _gather(calls, ANSWER_S) if calls else {}
    not_listening = {node: str(port) for node, port in ports.items() if not isinstance(port, int)}
    found: dict[str, tuple[str, ...]] = dict.fromkeys(nodes, ())
    for node, other in ring.items():
        why = not_listening.get(other) or results.get(node, "")
        if why:
            found[node] = (f"{nodes[other]} ({why})",)
    return found
