"""An evaluation as a table with a line a task, in the form that MLflow's page of evaluations reads."""

import json
from pathlib import Path
from typing import Any

from orchestrator.run.redaction import blanked

COLUMNS = ("env", "task", "accuracy", "right", "scored", "failed")
TEXTS = ("prompt", "answer", "verdict")
"""Columns of what was asked and answered: the first of the answers to a task, and the verifier's line on it."""


def table_of(result: dict[str, Any], answers: Path | None) -> dict[str, Any]:
    """Return the columns and rows of an evaluation's file; with the file of its `answers` the texts too."""
    texts = {} if answers is None else _texts(answers)
    rows = []
    for env, tasks in sorted(result.get("tasks", {}).items()):
        for task in tasks:
            share = task["right"] / task["scored"] if task["scored"] else None
            row = [env, task["key"], share, task["right"], task["scored"], task["failed"]]
            rows.append(row if answers is None else row + texts.get((env, task["key"]), [None] * len(TEXTS)))
    return {"columns": [*COLUMNS, *(() if answers is None else TEXTS)], "data": rows}


def accuracies(result: dict[str, Any]) -> dict[str, float]:
    """Return the accuracy of each environment, as far as it is known."""
    known = {env: values.get("avg_at_k") for env, values in result["envs"].items()}
    return {env: float(value) for env, value in known.items() if value is not None}


def _texts(path: Path) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    if not path.exists():
        return found
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line, parse_constant=lambda _: None)
            key = row["env"], row["key"]
            if key not in found:
                answer = row["turns"][-1]["answer"] if row["turns"] else ""
                found[key] = [json.dumps(row["messages"]), answer, blanked(row.get("detail", ""))]
    return found
