"""For engines anywhere: the learner's ranks send them buckets, by NCCL where all have GPUs of their own, else by gloo.

Neither end holds a segment: `rollout/weights/bucket_ways.py` has both ends of the way of a bucket.
"""

from rollout.weights.transports.transport import Transport


class Broadcast(Transport):
    """Every rank of the learner sends its share to all processes of all engines at once."""

    name = "broadcast"
