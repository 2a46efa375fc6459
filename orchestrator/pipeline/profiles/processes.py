"""How many engines and ranks there are, and their threads."""

from temper.orchestrator.pipeline.profiles.asked import ProfiledSettings, found
from temper.orchestrator.pipeline.profiles.place import Place, power_of_two

ENGINE_FILL = 0.6
"""Share of the memory of an engine's GPUs that its weights may take: the rest is for states, keys and values."""
TOY_THREADS = 2
"""Threads beyond which the operations of a small model are no faster."""
MOST_THREADS = 16


def choose_processes(asked: ProfiledSettings, place: Place) -> None:
    """Choose ranks, engines and how many GPUs each of these has; on a CPU their threads and the engine's cache."""
    if place.gpu:
        _on_gpus(asked, place)
    else:
        _on_cpus(asked, place)


def _on_gpus(asked: ProfiledSettings, place: Place) -> None:
    """Share the GPUs: half of them learn and the others sample where a run does both, each with its own.

    Ranks are a power of two; where a rank and an engine share a GPU there are as many of both.
    """
    total, weights = place.hardware.gpus, 2 * place.shape.parameters
    most = 1 if place.shared else place.hardware.gpus_together
    tensor = 1
    while 2 * tensor <= most and weights > ENGINE_FILL * place.gpu_bytes * tensor:
        tensor *= 2
    both = place.trains and place.plays and total > 1 and not place.shared
    ranks = total // 2 if both else total if place.trains else 1
    ranks = asked.take("learner.ranks", _sharing(asked, power_of_two(ranks, least=1, most=total)))
    left = total - ranks if both else ranks if place.shared and place.trains else total
    tensor = asked.take("rollout.engine.tensor_parallel", power_of_two(min(tensor, left), least=1, most=total))
    processes = tensor * int(asked.value("rollout.engine.pipeline_parallel"))
    if place.plays:
        asked.take("rollout.workers", max(1, left // processes))
    _threads_of_ranks(asked, place, together=min(ranks, place.hardware.gpus_together))


def idle_gpus(asked: ProfiledSettings, place: Place) -> int:
    """Return how many GPUs get neither a rank nor an engine."""
    parallel = int(asked.value("rollout.engine.tensor_parallel")) * int(asked.value("rollout.engine.pipeline_parallel"))
    ranks = int(asked.value("learner.ranks")) * place.trains
    engines = int(asked.value("rollout.workers")) * parallel * place.plays
    used = max(ranks, engines) if place.shared or place.halves else ranks + engines
    return max(0, place.hardware.gpus - used)


def _sharing(asked: ProfiledSettings, ranks: int) -> int:
    """Return as many ranks, or so few that every supervised stage that is listed can share its batch among them."""
    batches = [found(own, "batch_size") or asked.value(f"{stage.name}.batch_size") for stage, own in asked.stages()]
    while any(isinstance(batch, int) and batch % ranks for batch in batches):
        ranks //= 2
    return ranks


def _on_cpus(asked: ProfiledSettings, place: Place) -> None:
    """Share the cores: all of them learn where nothing is sampled meanwhile, and half of them where something is."""
    cores = place.hardware.cpus
    ranks, workers = asked.take("learner.ranks", 1), asked.take("rollout.workers", 1)
    processes = workers * int(asked.value("rollout.engine.tensor_parallel"))
    beside = _threads_of_ranks(asked, place, together=ranks)
    left = cores - beside * ranks if place.trains else cores
    asked.take("rollout.engine.threads", _threads(left // processes, place))
    asked.take("rollout.engine.memory_gib", max(1, min(16, int(place.hardware.memory_gib / 16 / workers))))


def _threads_of_ranks(asked: ProfiledSettings, place: Place, *, together: int) -> int:
    """Choose the threads of each of so many ranks of a machine: all cores, or half of them while engines generate. Return the
    latter. On GPUs an offloaded optimiser and copies to main memory use them.
    """
    cores = place.hardware.cpus
    asked.take("learner.threads", _threads(cores // together, place))
    return asked.take("learner.threads_beside", _threads(cores // 2 // together, place))


def _threads(cores: int, place: Place) -> int:
    return max(1, min(cores, TOY_THREADS if place.toy else MOST_THREADS))
