"""How long episodes may be, how much the engines hold, how many groups make a step, and how long all that may take."""

from temper.orchestrator.pipeline.profiles.asked import ProfiledSettings, stages_with, usual_value
from temper.orchestrator.pipeline.profiles.place import Place, power_of_two

ENGINE_SHARE = 0.9
"""Share of a GPU's memory that an engine takes which has it to itself."""
SHARED_SHARE = 0.85
"""The same where a rank lies beside it, which keeps some memory in the engine's turn too."""
OVERHEAD = 2 * 2**30
"""Bytes of an engine beside weights, states, keys and values: graphs, and what a pass computes."""
LARGE_GIB = 44
"""Memory of a GPU from which on episodes are `LONGER`: that of one of 48, as it is counted."""
SHORTER, LONGER = 8192, 16384
"""Tokens of an episode."""
SLOW = 8.0
"""Tokens a second of one episode, at the least: what its deadline goes by."""
GPU_EPISODE_S, GPU_START_S = 300.0, 1200.0
"""The least for an episode on GPUs, and for a start there: engines capture graphs and compile."""


def choose_limits(asked: ProfiledSettings, place: Place) -> None:
    """Choose the tokens of a turn and of an episode; the engine's longest sequence is that of an episode."""
    total = int(usual_value("rollout.limits.total_tokens"))
    if place.gpu:
        room = SHORTER if place.hardware.gpu_gib < LARGE_GIB else LONGER
        total = min(room, place.shape.positions or room)
    total = asked.take("rollout.limits.total_tokens", total)
    if place.gpu:
        asked.take("rollout.limits.turn_tokens", max(1, total * 3 // 4))
    asked.take("rollout.engine.max_model_len", total)


def choose_sampling(asked: ProfiledSettings, place: Place) -> None:
    """Choose deadlines, and on GPUs the size of engines and of steps."""
    total = int(asked.value("rollout.limits.total_tokens"))
    _deadlines(asked, place, total=total)
    if place.gpu:
        _engine(asked, place, total=total)
        asked.take("rl.groups_per_step", power_of_two(8 * place.hardware.gpus, least=16, most=128))
        asked.take("rl.group_size", 16 if place.hardware.gpus > 1 else 8)


def _engine(asked: ProfiledSettings, place: Place, *, total: int) -> None:
    """Choose an engine's share of its GPUs, and how many sequences have room there, each a quarter as long as may be."""
    share = SHARED_SHARE if place.shared else ENGINE_SHARE / 2 if place.halves else ENGINE_SHARE
    share = asked.take("rollout.engine.gpu_memory_utilization", share)
    asked.take("rollout.engine.batched_tokens", 8192 if place.hardware.gpu_gib < 75 else 16384)
    shape, tensor = place.shape, int(asked.value("rollout.engine.tensor_parallel"))
    width = 4 if asked.value("rollout.engine.dtype") == "float32" else 2
    room = share * place.hardware.gpu_gib * 2**30 * tensor - width * shape.parameters - OVERHEAD * tensor
    each = shape.state_bytes + shape.cache_bytes * (width / 2) * total / 4
    asked.take("rollout.engine.max_sequences", power_of_two(room / max(each, 1), least=8, most=256))


def _deadlines(asked: ProfiledSettings, place: Place, *, total: int) -> None:
    """Choose deadlines: an episode's by its length, those of whoever waits for it above that."""
    least = float(usual_value("rollout.limits.timeout_s")) if not place.gpu else GPU_EPISODE_S
    episode = asked.take("rollout.limits.timeout_s", max(least, float(round(total / SLOW))))
    stalled = float(usual_value("supervision.stalled_s"))
    stalled = asked.take("supervision.stalled_s", max(stalled, float(round(1.3 * episode))))
    for stage in stages_with("timeout_s"):
        waits = float(usual_value(f"{stage}.timeout_s"))
        asked.take(f"{stage}.timeout_s", max(waits, float(round(1.5 * stalled))))
    if place.gpu:
        asked.take("deadlines.start_s", GPU_START_S)
