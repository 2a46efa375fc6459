"""An evaluation as a table with one row per task, in the format of MLflow's evaluation page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.tracking.metric_names import ACCURACY

COLUMNS = ("task", "accuracy", "env", "right", "scored", "failed")
"""The page groups rows by the first column and shows the second one by default."""
TEXTS = ("prompt", "answer", "detail")
"""Leading columns with texts: the prompt, the first answer to a task, and the verifier's line."""


def build_table(result: dict[str, Any], answers: Path | None) -> dict[str, Any]:
    """Return the columns and rows of an evaluation's file, with texts if `answers` is its file of answers."""
    texts = {} if answers is None else _texts(answers)
    rows = []
    for env, tasks in sorted(result.get("tasks", {}).items()):
        for task in tasks:
            share = task["right"] / task["scored"] if task["scored"] else None
            row = [task["key"], share, env, task["right"], task["scored"], task["failed"]]
            said = texts.get((env, task["key"]), [task["key"], None, None])
            rows.append(row if answers is None else said + row)
    return {"columns": [*(() if answers is None else TEXTS), *COLUMNS], "data": rows}


def read_accuracies(result: dict[str, Any]) -> dict[str, float]:
    """Return the known accuracy of each environment by its metric name."""
    known = {env: values.get("avg_at_k") for env, values in result["envs"].items()}
    return {f"{ACCURACY}/{env}": float(value) for env, value in known.items() if value is not None}


def _texts(path: Path) -> dict[tuple[str, str], list[str | None]]:
    found: dict[tuple[str, str], list[str | None]] = {}
    if not path.exists():
        return found
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line, parse_constant=lambda _: None)
            key = row["env"], row["key"]
            if key not in found:
                answer = row["turns"][-1]["answer"] if row["turns"] else ""
                found[key] = [last_user_message(row["messages"]), answer, blank_text(row.get("detail", ""))]
    return found


def last_user_message(messages: Sequence[dict[str, Any]]) -> str:
    """Return the last user message as text."""
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "user"), "")
    return content if isinstance(content, str) else json.dumps(content)
