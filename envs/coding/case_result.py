"""The result of one test of a program, as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temper.envs.sandbox.bridge import MARK
from temper.envs.sandbox.sealed_process import Reply, ReplyKind

MAX_SHOWN = 200
FAULTS = {
    ReplyKind.RAISED: "the program raised an error",
    ReplyKind.TIME: "the program ran out of time",
    ReplyKind.OUTPUT: "the program gave too much output",
}
"""The end of a program without details of the test, so that it can be shown for a hidden test."""
ENDED = {ReplyKind.RAISED: "raised", ReplyKind.TIME: "ran", ReplyKind.OUTPUT: "gave too much output:"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of one test. `detail` describes it for people, and for the model if the test may be shown."""

    passed: bool
    detail: str = ""
    policy_fault: bool = False
    out_of_time: bool = False
    fault: str = "the result is wrong"


def fail_case(reply: Reply, what: str) -> CaseResult:
    detail = f"{what} {ENDED.get(reply.kind, 'ended:')} {reply.detail}".strip()
    out_of_time = reply.kind is ReplyKind.TIME
    fault = FAULTS.get(reply.kind, "the program gave no result")
    return CaseResult(
        passed=False, detail=detail, policy_fault=reply.policy_fault, out_of_time=out_of_time, fault=fault
    )


def shorten(text: str, limit: int = MAX_SHOWN) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def format_value(value: Any) -> str:
    return shorten(_python(value, 0))


def call_text(name: str, arguments: Sequence[Any], keywords: dict[str, Any] | None = None) -> str:
    parts = [
        *map(format_value, arguments),
        *(f"{key}={format_value(value)}" for key, value in (keywords or {}).items()),
    ]
    return shorten(f"{name}({', '.join(parts)})")


def _python(value: Any, depth: int) -> str:
    """Write a value as Python, marked forms as calls of their type, only as long as needed for truncation."""
    if depth > 5:
        return "..."
    if isinstance(value, str | bytes):
        return repr(value[: MAX_SHOWN + 1])
    if isinstance(value, tuple) and value and value[0] == MARK:
        if value[1:2] in (("kept",), ("own",)):
            return "<object>"
        inner = ", ".join(_python(part, depth + 1) for part in value[2 : 2 + MAX_SHOWN])
        return f"{value[1]}({inner})" if len(value) > 1 and isinstance(value[1], str) else "..."
    if isinstance(value, dict):
        items = list(value.items())[:MAX_SHOWN]
        return "{" + ", ".join(f"{_python(k, depth + 1)}: {_python(v, depth + 1)}" for k, v in items) + "}"
    if isinstance(value, list | tuple | set | frozenset) and value:
        brackets = {list: "[]", tuple: "()"}.get(type(value), "{}")
        inner = ", ".join(_python(item, depth + 1) for item in list(value)[:MAX_SHOWN])
        return f"{brackets[0]}{inner}{',' * (type(value) is tuple and len(value) == 1)}{brackets[1]}"
    return repr(value)
