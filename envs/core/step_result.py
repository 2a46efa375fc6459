"""The result of a turn, validated on entry since anyone may write an environment, and the times of its tool calls.

An environment runs each call inside `tool_span`. The runner of the episode collects the `spans_of_step`.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from temper.envs.core.errors import EnvironmentFault, GraderError
from temper.envs.core.task import Message
from temper.envs.core.turn_text import BadCall, Call
from temper.rewards.score import Outcome, Score

GymStep = tuple[str, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpan:
    """One tool call: its name, its arguments, its start since the step's start, and its duration, in seconds.

    An unreadable call has no name.
    """

    name: str
    arguments: dict[str, Any]
    began_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one turn: `messages` while the episode continues, a reward and a score at its end.

    `truncated` is True if a limit ended it. `tool_spans` are its timed tool calls, if the environment uses `tool_span`.
    """

    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    score: Score = field(default_factory=Score)
    messages: tuple[Message, ...] = ()
    tool_spans: tuple[ToolSpan, ...] = field(default=(), compare=False)


def validate_result(result: Any, name: str) -> StepResult:
    """Return a validated result with numpy scalars as plain numbers. `name` is the task's, for messages.

    Raise `GraderError` for a reward or part that is not a finite number, `EnvironmentFault` for any other fault.
    """
    if not isinstance(result, StepResult):
        raise EnvironmentFault(
            f"{name}: a turn returned {result!r:.100}; return self.end(...) or self.continue_with(...)"
        )
    score = result.score
    if not isinstance(score.parts, Mapping):
        raise EnvironmentFault(f"{name}: the parts of the reward are {score.parts!r:.100}, not a mapping")
    parts = {
        str(part): require_number(value, f"the part {part!r} of the reward of {name}")
        for part, value in score.parts.items()
    }
    return replace(
        result,
        reward=require_number(result.reward, f"the reward of {name}"),
        score=Score(
            outcome=None if score.outcome is None else Outcome(score.outcome),
            parts=parts,
            detail=str(score.detail).encode(errors="replace").decode(),
            evidence=_plain(score.evidence, dict, f"the evidence of {name}"),
        ),
        messages=read_messages({"messages": result.messages}, name),
    )


def from_gymnasium(returned: Any, name: str) -> StepResult:
    """Return the result of a gymnasium `step`, validated as in `validate_result`."""
    try:
        _, reward, terminated, truncated, info = returned
        given = dict(info)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"{name}: step must return (observation, reward, terminated, truncated, info): {error}"
        ) from error
    score = Score(
        outcome=given.get("outcome"),
        parts=given.get("parts", {}),
        detail=given.get("detail", ""),
        evidence=given.get("evidence", {}),
    )
    result = StepResult(
        reward=reward,
        done=bool(terminated) or bool(truncated),
        truncated=bool(truncated) and not bool(terminated),
        score=score,
        messages=given.get("messages", ()),
    )
    return validate_result(result, name)


def to_gymnasium(result: StepResult) -> GymStep:
    """Return a result in the form of gymnasium's `step`. `info` has the fields of the score, or the messages."""
    if not result.done:
        observation = "\n".join(message["content"] for message in result.messages)
        return observation, result.reward, False, False, {"parts": {}, "messages": list(result.messages)}
    score = result.score
    info = {
        "parts": score.parts,
        "outcome": None if score.outcome is None else score.outcome.value,
        "detail": score.detail,
        "evidence": score.evidence,
    }
    return "", result.reward, not result.truncated, result.truncated, info


def read_messages(info: Mapping[str, Any], name: str) -> tuple[Message, ...]:
    """Return the messages that an environment shows the model. Raise `EnvironmentFault` if they are invalid."""
    messages = _plain(list(info.get("messages", ())), list, f"the messages of {name}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EnvironmentFault(f"a message of {name} is {message!r:.100}; it needs a role and content")
    return tuple(messages)


def require_number(value: Any, what: str) -> float:
    """Return a number that a function of the user gave. Raise `GraderError` unless it is finite."""
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise GraderError(f"{what} is {value!r:.100}, not a finite number")
    return number


def _plain(value: Any, kind: type, what: str) -> Any:
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


@dataclass(slots=True)
class StepSpans:
    """The calls of one step so far."""

    began: float = field(default_factory=time.monotonic)
    spans: list[ToolSpan] = field(default_factory=list)


CURRENT: ContextVar[StepSpans | None] = ContextVar("CURRENT", default=None)


@contextmanager
def spans_of_step() -> Iterator[list[ToolSpan]]:
    """Collect the calls that run in a block, in the order of their ends."""
    step = StepSpans()
    token = CURRENT.set(step)
    try:
        yield step.spans
    finally:
        CURRENT.reset(token)


@contextmanager
def tool_span(call: Call | BadCall) -> Iterator[None]:
    """Run a call in a block and time it, if the step's calls are collected."""
    began, requested = time.monotonic(), deepcopy(call)  # a tool may change its arguments
    try:
        yield
    finally:
        add_span(requested, began=began, seconds=time.monotonic() - began)


def add_span(call: Call | BadCall, *, began: float, seconds: float) -> None:
    """Add a call that another process timed. `began` is on the monotonic clock of this process."""
    step = CURRENT.get()
    if step is None:
        return
    name, arguments = (call.name, call.arguments) if isinstance(call, Call) else ("", {})
    step.spans.append(ToolSpan(name=name, arguments=arguments, began_s=began - step.began, seconds=seconds))
