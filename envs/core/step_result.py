"""What an environment answers to a turn, checked where it enters: anybody may have written the environment."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.core.errors import EnvironmentFault, GraderError
from envs.core.task import Message
from rewards.verdict import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The answer to one turn, plain data throughout. `out_of_turns` says that it is over because a limit cut it off."""

    reward: float
    done: bool
    out_of_turns: bool
    outcome: Outcome | None
    parts: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()


def checked(returned: Any, name: str) -> StepResult:
    """What `step` returned, with numpy's scalars as plain numbers. `name` is the task's, for messages.

    Raises `GraderError` for a reward or a part that is no finite number, `EnvironmentFault` for anything else.
    """
    try:
        _, reward, terminated, truncated, info = returned
        given = dict(info)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"{name}: step returned no (observation, reward, ended, cut off, info): {error}"
        ) from error
    parts = given.get("parts", {})
    if not isinstance(parts, Mapping):
        raise EnvironmentFault(f"{name}: the parts of the reward are {parts!r:.100}, not a mapping")
    outcome = given.get("outcome")
    return StepResult(
        reward=_number(reward, f"the reward of {name}"),
        done=bool(terminated) or bool(truncated),
        out_of_turns=bool(truncated) and not bool(terminated),
        outcome=None if outcome is None else Outcome(outcome),
        parts={
            str(part): _number(value, f"the part {part!r} of the reward of {name}") for part, value in parts.items()
        },
        detail=str(given.get("detail", "")).encode(errors="replace").decode(),
        evidence=_plain(given.get("evidence", {}), dict, f"the evidence of {name}"),
        messages=messages_in(given, name),
    )


def messages_in(info: Mapping[str, Any], name: str) -> tuple[Message, ...]:
    """The messages that an environment shows the model; `EnvironmentFault` where they are none."""
    messages = _plain(list(info.get("messages", ())), list, f"the messages of {name}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EnvironmentFault(f"a message of {name} is {message!r:.100}; it needs a role and content")
    return tuple(messages)


def _number(value: Any, what: str) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise GraderError(f"{what} is {value!r:.100}, not a finite number")
    return number


def _plain(value: Any, kind: type, what: str) -> Any:
    """A copy made of plain JSON data."""
    try:
        copy = json.loads(json.dumps(value, default=_scalar, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFault(f"{what} are no JSON data: {error}") from error
    if not isinstance(copy, kind):
        raise EnvironmentFault(f"{what} are {copy!r:.100}, not a {kind.__name__}")
    return copy


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
