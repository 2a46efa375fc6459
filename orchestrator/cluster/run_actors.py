"""The processes of a run as Ray actors: the pool of rollout workers, and the learner's ranks."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from temper.envs.core.process import LearnerDied, WorkerDied
from temper.learner.config import LearnerConfig
from temper.learner.trainer_group import RankHandle, TrainerGroup
from temper.orchestrator.cluster.actors import ActorProcess, kill_on_failure, run_on_node
from temper.orchestrator.cluster.bundles import Bundles
from temper.orchestrator.cluster.placement import Node
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.rollout.config import RolloutConfig
from temper.rollout.episodes.worker import NO_VARIABLES, RolloutWorker, WorkerHandle
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.slot_keeper import RestartPolicy
from temper.rollout.trajectory import WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine
from temper.rollout.weights.config import CUDA_IPC
from temper.rollout.weights.delivery import ServedWeights

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
    restart_policy: RestartPolicy | None = None,
    newest: Callable[[], Path] | None = None,
    variables: Mapping[str, str] = NO_VARIABLES,
) -> RolloutPool:
    """Return a pool of workers in `bundles`, each with an engine on a model directory of version `version`.

    With `sleeps` engines may give their devices to the learner. `newest` returns the model of a new worker. `variables`
    are environment variables of workers, as an argument because Ray logs its own. Its `start` raises `ValueError` if
    experts can't be recorded, and `TooManyRestarts` if workers die before they serve.
    """
    actor = ray.remote(max_restarts=0)(RolloutWorker)

    def spawn(number: int) -> WorkerHandle:
        bundle = bundles.engine(number)
        options = bundle.options() | {"max_concurrency": CONCURRENT_CALLS}
        started = actor.options(**options).remote(
            config,
            seed=seed,
            make_engine=make_engine,
            make_agent_server=make_agent_server,
            variables=dict(variables),
        )
        process = ActorProcess(started, name=f"rollout worker {number}", died=WorkerDied, on_end=bundle.free)
        return WorkerHandle(process, number=number, record_experts=record_experts, sleeps=sleeps)

    weights = ServedWeights(model_dir, version, push_s=config.engine.push_deadline_s, newest=newest)
    return RolloutPool(
        spawn, workers=config.workers, weights=weights, retries=config.retries, restart_policy=restart_policy
    )


GROUPS = {"heartbeat": "health", "write": "files"}
"""Calls with a separate thread: a rank answers them while it computes."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
TUNED = {"TRITON_CACHE_AUTOTUNING": "1"}
"""Lets a restarted rank reuse Triton's tuning of Mamba's kernels, which takes minutes on an H100."""


async def start_trainer_group(config: LearnerConfig, *, bundles: Bundles, engine_processes: int) -> TrainerGroup:
    """Start one actor per rank in its bundle, and wait until they meet at rank 0's address.

    If a machine is lost, wait until all bundles have one again.
    """
    from temper.learner.worker import TrainerWorker  # the import takes seconds, and most commands start no ranks

    placed_ranks = await bundles.ranks()
    host, port = await _rendezvous([node for _, node in placed_ranks])
    actor = ray.remote(max_restarts=0, concurrency_groups=dict.fromkeys(GROUPS.values(), 1))(TrainerWorker)
    variables = rank_variables(config, on_gpus=bundles.gpus > 0)
    started = [
        actor.options(**bundle.options(), **variables).remote(rank, config.ranks, host, port, config)
        for rank, (bundle, _) in enumerate(placed_ranks)
    ]
    ranks = [rank_handle(one, number=number) for number, one in enumerate(started)]
    group = TrainerGroup(ranks, engine_processes=engine_processes)
    with kill_on_failure(started):
        await group.wait_until_running()
    return group


def rank_handle(actor: Any, *, number: int) -> RankHandle:
    name = f"the learner's rank {number}"
    return RankHandle(ActorProcess(actor, name=name, died=LearnerDied, groups=GROUPS), number=number)


def rank_variables(config: LearnerConfig, *, on_gpus: bool) -> dict[str, Any]:
    """Return Ray options with the environment of a rank on a GPU. The user's variables win.

    Expandable segments avoid fragmentation of torch's memory. Other processes open them slowly, so ranks that push by
    `cuda_ipc` have none.
    """
    if not on_gpus:
        return {}
    grown = config.transport != CUDA_IPC and not any(name in os.environ for name in ALLOCATOR)
    variables = TUNED | ({ALLOCATOR[0]: "expandable_segments:True"} if grown else {})
    own = {name: value for name, value in variables.items() if name not in os.environ}
    return {"runtime_env": {"env_vars": own}} if own else {}


async def _rendezvous(nodes: Sequence[Node]) -> tuple[str, int]:
    """Return rank 0's address and a free port: loopback if all ranks share a node."""
    first = nodes[0]
    host = LOOPBACK if {node.name for node in nodes} == {first.name} else first.address
    here = first.name == ray.get_runtime_context().get_node_id()
    return host, free_port(host) if here else await run_on_node(first.name, free_port, host)
