"""Actors that stand for many: several workers of a pool live in one process, and whatever class is the learner's rank.

To the driver they are what real ones are: a handle each, and the same calls.
"""

from collections.abc import Sequence
from pathlib import Path

import ray

from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.cluster.rollout_actors import CONCURRENT_CALLS, RolloutActor
from temper.orchestrator.cluster.trainer_actors import HEALTH, TrainerActor
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.worker import RolloutConfig, RolloutWorker
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.trajectory import WeightVersion


def crowded_pool(
    worker: type[RolloutWorker],
    config: RolloutConfig,
    answers: Sequence[Completion],
    *,
    model_dir: Path,
    processes: int,
    seed: int,
) -> RolloutPool:
    """Return a pool of `config.workers` workers that share so many processes, and whose engines play these answers.

    A process is started as often as it has workers.
    """
    actor = ray.remote(worker).options(num_cpus=0, max_concurrency=CONCURRENT_CALLS, max_restarts=0)
    given = ray.put(list(answers))
    started = [actor.remote(config, given, seed=seed) for _ in range(processes)]

    def spawn(number: int) -> RolloutActor:
        return RolloutActor(started[number % processes], number=number)

    weights = ServedWeights(model_dir, WeightVersion(step=0), push_s=config.engine.push_deadline_s)
    return RolloutPool(spawn, workers=config.workers, weights=weights, retries=0)


def group_of(rank: type, *, ranks: int) -> TrainerGroup:
    """Return a group of so many actors of a class that has the calls of a rank."""
    actor = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={HEALTH: 1})(rank)
    return TrainerGroup([TrainerActor(actor.remote(), number=number) for number in range(ranks)], engine_processes=1)
