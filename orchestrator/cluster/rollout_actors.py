"""The rollout workers as actors of Ray, and the pool of them."""

from collections.abc import Callable
from pathlib import Path

import ray

from temper.envs.core.member import WorkerDied
from temper.orchestrator.cluster.actors import ActorProcess
from temper.orchestrator.cluster.bundles import Bundles
from temper.rollout.episodes.worker import RolloutConfig, RolloutWorker
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.pool.slot_keeper import Healing
from temper.rollout.pool.worker_handle import WorkerHandle
from temper.rollout.trajectory import WeightVersion

CONCURRENT_CALLS = 4096


def make_rollout_pool(
    config: RolloutConfig,
    *,
    bundles: Bundles,
    model_dir: Path,
    version: WeightVersion,
    seed: int,
    record_experts: bool = False,
    sleeps: bool = False,
    healing: Healing | None = None,
    newest: Callable[[], Path] | None = None,
) -> RolloutPool:
    """Return a pool of workers in `bundles`, each with an engine on a model directory that counts as `version`.

    Engines that `sleeps` says may give their devices to the learner. `newest` returns the model that a new worker reads. Its
    `start` raises `ValueError` if experts can't be recorded, and `TooManyRestarts` if workers die before they serve.
    """
    actor = ray.remote(max_restarts=0)(RolloutWorker)

    def spawn(number: int) -> WorkerHandle:
        bundle = bundles.engine(number)
        options = bundle.options() | {"max_concurrency": CONCURRENT_CALLS}
        started = actor.options(**options).remote(config, seed=seed)
        process = ActorProcess(started, name=f"rollout worker {number}", died=WorkerDied, on_end=bundle.free)
        return WorkerHandle(process, number=number, record_experts=record_experts, sleeps=sleeps)

    weights = ServedWeights(model_dir, version, push_s=config.engine.push_deadline_s, newest=newest)
    return RolloutPool(spawn, workers=config.workers, weights=weights, retries=config.retries, healing=healing)
