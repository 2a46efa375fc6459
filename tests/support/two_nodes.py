"""A cluster of Ray with two nodes on this machine, as a process: prints its address, then obeys commands on its input.

`lose` kills the second node with all its processes, `join` adds another one. A line answers each. The nodes declare two
GPUs and one, so that one of three actors runs on the second node.
"""

import subprocess
import sys

import psutil
from ray.cluster_utils import Cluster


class Nodes:
    """The cluster, controlled by lines."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._answer("address ")

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        self._answer("done ")

    def close(self) -> None:
        """End the cluster."""
        everyone = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for one in everyone:
            if one.is_running():
                one.kill()

    def _answer(self, head: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(head):
                return line.removeprefix(head).strip()
        raise AssertionError("the cluster ended")


def main() -> None:
    node = {"num_cpus": 4, "dashboard_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args={"num_gpus": 2, "include_dashboard": False, **node})
    other = cluster.add_node(num_gpus=1, **node)
    cluster.wait_for_nodes()
    print(f"address {cluster.address}", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "lose":
                cluster.remove_node(other, allow_graceful=False)
            case "join":
                other = cluster.add_node(num_gpus=1, **node)
        print(f"done {line.strip()}", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
