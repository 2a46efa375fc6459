"""A cluster of Ray with two nodes on this machine, as a process: prints its address, then does what is written to it.

`lose` kills the second node with all its processes, `join` adds another one; each is answered by a line. The nodes say that
they have GPUs, two and one, so that of three actors one lies on the second node.
"""

import sys

from ray.cluster_utils import Cluster


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
