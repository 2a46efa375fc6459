"""Settings that mend a limit of a run, found by trying them: the limit is kept then, and no other one is hit for it."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from temper.orchestrator.cluster.hardware import GIB
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.tools.preflight.plan.planner import Planner

GPUS, RANK, ENGINE, PAGES, MEMORY, PUSH = "GPUs", "rank", "engine", "pages", "main memory", "push"
Changes = Mapping[str, Any]
"""Settings by their keys: `{"rollout.workers": 2}`."""
Knob = Sequence[Changes]
"""Ways to turn one thing further and further: what each changes, the least change first."""


def held(planner: Planner) -> frozenset[str]:
    """Return the limits that a run as planned keeps."""
    return frozenset(name for name, holds in HOLDS.items() if holds(planner))


def mending(planner: Planner, limit: str, knobs: Sequence[Knob]) -> str:
    """Return settings by which a limit that is hit is kept, and those kept now still are; "" where none of these do that.

    One knob alone comes first, turned as little as is enough. Else they are turned as far as they go, one after the other.
    """
    before = held(planner)

    def kept(changes: Changes) -> frozenset[str]:
        """Return the limits that are kept with other settings; none where a limit is hit for them that was not."""
        other = tried(planner, changes)
        now = frozenset() if other is None else held(other)
        return now if before <= now else frozenset()

    for together in (False, True):
        turned: Changes = {}
        for knob in knobs:
            furthest = turned
            for one in knob:
                changes = {**turned, **one}
                if limit in (now := kept(changes)):
                    return in_words(_needed(changes, lambda fewer: limit in kept(fewer)))
                furthest = changes if now else furthest
            turned = furthest if together else {}
    return ""


def _needed(changes: Changes, mends: Callable[[Changes], bool]) -> Changes:
    """Return the changes without those that nothing is gained by."""
    for key in list(changes):
        fewer = {other: value for other, value in changes.items() if other != key}
        changes = fewer if fewer and mends(fewer) else changes
    return changes


def tried(planner: Planner, changes: Changes) -> Planner | None:
    """Return the plan with other settings; None where the configuration refuses them."""
    config = planner.config
    try:
        for key, value in changes.items():
            config = _replaced(config, key.split("."), value)
    except ValueError:
        return None
    return Planner(config, planner.model, planner.site, planner.assumptions)


def no_other_is_hit(planner: Planner, changes: Changes) -> bool:
    """Return whether the configuration takes other settings, and every limit that is kept without them still is."""
    other = tried(planner, changes)
    return other is not None and held(planner) <= held(other)


def _replaced(part: Any, names: Sequence[str], value: Any) -> Any:
    first, *rest = names
    return replace(part, **{first: _replaced(vars(part)[first], rest, value) if rest else value})


def in_words(changes: Changes) -> str:
    """Return settings as the command line takes them."""
    return " ".join(f"{key}={value}" for key, value in changes.items())


def fewer_engines(config: Config) -> Knob:
    """Return how fewer engines are set, down to one."""
    return [{"rollout.workers": count} for count in range(config.rollout.workers - 1, 0, -1)]


def fewer_ranks(config: Config) -> Knob:
    """Return how fewer ranks are set, down to one; numbers that can't share every batch are refused where they are tried."""
    return [{"learner.ranks": count} for count in range(config.learner.ranks - 1, 0, -1)]


def shorter_sequences(planner: Planner) -> Knob:
    """Return how episodes are made as short as an engine's cache has room for, if there is room for more than a turn."""
    engine, turn = planner.engine, planner.config.rollout.limits.turn_tokens
    assert engine is not None
    lengths = range(turn + 1, planner.longest)
    longer = bisect_left(lengths, True, key=lambda length: not engine.sequences(length))
    names = ("rollout.limits.total_tokens", "rollout.engine.max_model_len")
    return [dict.fromkeys(names, turn + longer)] if longer else []


def wider_engines(planner: Planner) -> Iterator[Changes]:
    """Yield how an engine gets more and more GPUs of one machine, of which there are then fewer where that is too many."""
    wanted, tensor = planner.wanted, 2 * planner.config.rollout.engine.tensor_parallel
    while tensor <= planner.site.hardware.gpus_together:
        changes = {"rollout.engine.tensor_parallel": tensor}
        room = (planner.site.hardware.gpus - wanted.ranks) // (tensor * planner.config.rollout.engine.pipeline_parallel)
        yield changes | ({"rollout.workers": room} if 0 < room < wanted.engines else {})
        tensor *= 2


def narrower_engines(config: Config) -> Knob:
    """Return how an engine gets fewer GPUs, down to one."""
    tensor = config.rollout.engine.tensor_parallel
    return [{"rollout.engine.tensor_parallel": tensor >> halved} for halved in range(1, tensor.bit_length())]


def _has_gpus(planner: Planner) -> bool:
    return not planner.gpu or planner.wanted.on(planner.nodes).fits(planner.nodes)


def _rank_fits(planner: Planner) -> bool:
    return planner.rank is None or not planner.gpu or planner.rank.peak <= planner.rank_room


def _engine_fits(planner: Planner) -> bool:
    return planner.engine is None or planner.engine.sequences(planner.longest) >= 1


def _has_pages(planner: Planner) -> bool:
    return planner.engine is None or planner.engine.holds(planner.config.rollout.engine.max_sequences)


def _main_memory_fits(planner: Planner) -> bool:
    return planner.host.peak <= planner.site.hardware.memory_gib * GIB


def _pushes_arrive(planner: Planner) -> bool:
    return not (planner.trains and planner.plays and planner.push.lacks)


HOLDS: dict[str, Callable[[Planner], bool]] = {
    GPUS: _has_gpus,
    RANK: _rank_fits,
    ENGINE: _engine_fits,
    PAGES: _has_pages,
    MEMORY: _main_memory_fits,
    PUSH: _pushes_arrive,
}
"""Whether a run as planned keeps a limit, by its name."""
