"""Several updates from one batch: how it is split into mini-batches, and the metrics of all updates together."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import fmean

from learner.batches.batch import TrainingSample


def mini_batches(sequences: Sequence[TrainingSample], *, count: int) -> list[list[TrainingSample]]:
    """The sequences in `count` runs of like size, in their order: whole groups where there are enough, else whole answers.

    Groups of one run follow each other, so that each environment has its share in each of them.
    """
    groups = [list(members) for _, members in groupby(sequences, key=lambda sequence: sequence.group)]
    units = groups if len(groups) >= count else [[sequence] for sequence in sequences]
    bounds = [len(units) * number // count for number in range(count + 1)]
    runs = [units[start:stop] for start, stop in pairwise(bounds)]
    return [[sequence for unit in run for sequence in unit] for run in runs]


def over_updates(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over the updates that have it, and how many of them changed the weights, as `updates`.

    The learning rate is the last one.
    """
    names = dict.fromkeys(name for update in updates for name in update)
    means = {name: fmean(update[name] for update in updates if name in update) for name in names}
    rates = [update["learning_rate"] for update in updates if "learning_rate" in update]
    applied = sum(not update["skipped"] for update in updates)
    return means | ({"learning_rate": rates[-1]} if rates else {}) | {"updates": float(applied)}
