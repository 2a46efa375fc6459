"""What a recorded step's update asked of each answer: the few arrays of a batch's file that say so, without what trains."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from temper.orchestrator.session.recording.batch_head import head_of
from temper.rollout.token_arrays import Floats, as_floats

PARTS = ("advantages", "factors")
NOTHING = as_floats([])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUpdate:
    """An answer with a score: whose it is, and advantage and factor of each of its trained tokens (see `TokenRecord`)."""

    ticket: int
    env: str
    key: str
    reward: float
    advantages_T: Floats
    factors_T: Floats


def recorded_updates(path: Path) -> list[RecordedUpdate]:
    """Return the answers of a step's batch by their places.

    Raise `ValueError`, with the file, where it is damaged or of another format, `FileNotFoundError` where it was removed.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            head = head_of(file)
            arrays = {name: file.get_tensor(name) for name in PARTS}
        trained = {record["place"]: _taken(record, arrays) for record in head["records"]}
        answers = [(group, answer) for group in head["groups"] for answer in group["answers"]]
        return [
            _update(group, answer, *trained.get(place, (NOTHING, NOTHING)))
            for place, (group, answer) in enumerate(answers)
        ]
    except (SafetensorError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} can't be read: {error}; remove it, and another recorded step is told") from error


def _taken(record: dict[str, Any], arrays: dict[str, Any]) -> tuple[Floats, Floats]:
    """Take the tokens of a record from the beginnings of the arrays."""
    count, parts = record["tokens"], {}
    for name in PARTS:
        if name in record:
            parts[name] = np.full(count, record[name])
        else:
            parts[name], arrays[name] = np.split(arrays[name], [count])
            if len(parts[name]) < count:
                raise ValueError(f"{name} ends {count - len(parts[name])} tokens too early")
    advantages_T, factors_T = (as_floats(parts[name]) for name in PARTS)
    return advantages_T, factors_T


def _update(group: dict[str, Any], answer: dict[str, Any], advantages_T: Floats, factors_T: Floats) -> RecordedUpdate:
    return RecordedUpdate(
        ticket=group["ticket"],
        env=group["env"],
        key=group["key"],
        reward=answer["reward"],
        advantages_T=advantages_T,
        factors_T=factors_T,
    )
