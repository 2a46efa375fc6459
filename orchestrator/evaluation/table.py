"""The result of an evaluation as a short table."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from temper.orchestrator.evaluation.intervals import accuracy_interval
from temper.rollout.sampling import PLAIN


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of an evaluation's file, one for each environment; a dash is what nothing is known of."""
    k = result["k"]
    rows = [("environment", "tasks", f"avg@{k}", "95 %", f"pass@{k}", "reward", "tokens", "cut off", "failed")]
    for env, values in result["envs"].items():
        counts = {name: values[name] for name in ("tasks", "samples")}
        low, high = accuracy_interval(_number(values["avg_at_k"]), stderr=_number(values["stderr"]), **counts)
        rows.append(
            (
                env,
                str(values["tasks"]),
                _shown(values["avg_at_k"]),
                "-" if math.isnan(low) else f"{low:.3f} to {high:.3f}",
                _shown(values["pass_at_k"]),
                _shown(values["reward"]),
                _shown(values["tokens"], places=0),
                _shown(values["truncated"]),
                str(values["failures"]),
            )
        )
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ["  ".join((row[0].ljust(first), *map(str.rjust, row[1:], others))) for row in rows]
    return [f"{result['label']}: answers drawn at {_drawn(result['sampling'])}", *lines]


def _drawn(sampling: Mapping[str, Any]) -> str:
    usual = asdict(PLAIN) | {"temperature": None}
    given = {name: value for name, value in sampling.items() if value != usual.get(name)}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in given.items()
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _shown(value: float | None, *, places: int = 3) -> str:
    number = _number(value)
    return "-" if math.isnan(number) else f"{number:.{places}f}"
