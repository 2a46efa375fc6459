"""For engines anywhere: the learner's ranks send them buckets, by NCCL between GPUs, by gloo between CPUs.

Neither end holds a segment: `rollout/weights/bucket_ways.py` has both ends of the way of a bucket.
"""

from temper.rollout.weights.transports.transport import Transport


class Broadcast(Transport):
    """Up to 8 ranks of the learner send a share each to all processes of all engines at once."""

    name = "broadcast"
    medium = "network"
    own_devices = True
    buckets = True
