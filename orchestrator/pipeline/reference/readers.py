"""Which stages read a setting: a stage its own section, and what all of them share those that need it."""

from collections.abc import Callable
from typing import Any

from temper.orchestrator.stages.stage import Role, Stage, all_stages


def _all(stage: Stage[Any]) -> bool:
    return True


def _plays(stage: Stage[Any]) -> bool:
    """Return whether a stage may play episodes."""
    return stage.first_ticket is not None


def _begins(stage: Stage[Any]) -> bool:
    return stage.role is Role.BEGIN


def _trains(stage: Stage[Any]) -> bool:
    return stage.trains


def _computes(stage: Stage[Any]) -> bool:
    """Return whether a stage has processes that generate or train."""
    return stage.trains or stage.first_ticket is not None


READERS: dict[str, Callable[[Stage[Any]], bool]] = {
    "name": _all,
    "profile": _all,
    "chosen": _all,
    "seed": _all,
    "runs_dir": _all,
    "stages": _all,
    "placement": _all,
    "envs": _computes,
    "model": _begins,
    "rollout": _plays,
    "learner": _trains,
    "sandbox": _plays,
    "tracking": _all,
    "checkpoints": _trains,
    "deadlines": _computes,
    "supervision": _computes,
}
"""By the first word of a key, the stages that read what all stages share."""


def readers(key: str) -> list[str]:
    """Return the names of the stages that read a setting."""
    first = key.partition(".")[0]
    stages = all_stages()
    return [first] if first in stages else [name for name, stage in stages.items() if READERS[first](stage)]


def readers_in_words(key: str) -> str:
    """Return the same for people."""
    names = readers(key)
    return "every stage" if len(names) == len(all_stages()) else ", ".join(names)
