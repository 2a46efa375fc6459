"""`grade`: scores given responses to the tasks of a data file, by the code that training uses."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from envs.core.jsonl import read_rows
from envs.core.task import Task
from envs.playback import Scored, turns_of
from orchestrator.grading.scoring_pool import ScoringPool, Script

BAD_ROW = "bad_row"


def grade(tasks: dict[str, Task], responses: Path, out: Path, *, workers: int) -> bool:
    """Write one row per response, in their order; return whether every one has a reward.

    A response row that can't be read, or whose key no task has, gets a failure of type `bad_row`, never a reward.
    Rows are written as they come: what was done before an interruption is in the file.
    """
    rows = _responses(responses, tasks)
    results: list[dict[str, Any]] = []
    bar = Progress(
        TextColumn("grading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with bar, ScoringPool(workers) as pool, out.open("w", encoding="utf-8") as file:
        step = bar.add_task("", total=len(rows))
        scores = pool.scores(script for _, script in rows if not isinstance(script, str))
        for row in _rows(rows, scores):
            file.write(json.dumps(row) + "\n")
            file.flush()
            results.append(row)
            bar.advance(step)
    Console().print(summary(results))
    return all(row["failure"] is None for row in results)


def _responses(path: Path, tasks: dict[str, Task]) -> list[tuple[Any, Script | str]]:
    """Read each response's key, with the script that it is, or with what is wrong with it."""

    def parse(row: dict[str, Any], _number: int) -> tuple[Any, Script | str]:
        key = row.get("key")
        if str(key) not in tasks:
            return key, f"no task has the key {key!r}; the file has {len(tasks)}, for example {next(iter(tasks))!r}"
        try:
            return key, (tasks[str(key)], turns_of(row))
        except ValueError as error:
            return key, str(error)

    return read_rows(path, parse=parse, on_error="raise")[0]


def _rows(rows: list[tuple[Any, Script | str]], scores: Iterator[Scored]) -> Iterator[dict[str, Any]]:
    for key, script in rows:
        scored = Scored(reward=None) if isinstance(script, str) else next(scores)
        yield {
            "key": key,
            "reward": scored.reward,
            "parts": scored.verdict.parts,
            "outcome": None if scored.verdict.outcome is None else scored.verdict.outcome.value,
            "failure": _failure(script, scored),
            "detail": scored.verdict.detail,
            "seconds": round(scored.seconds, 4),
        }


def _failure(script: Script | str, scored: Scored) -> dict[str, str] | None:
    if isinstance(script, str):
        return {"type": BAD_ROW, "message": script}
    return None if scored.failure is None else {"type": scored.failure.kind.value, "message": scored.failure.message}


def summary(rows: list[dict[str, Any]]) -> Table:
    """Lay out the counts, means and failures of graded rows."""
    table = Table(title=f"{len(rows)} responses")
    table.add_column("")
    table.add_column("value", justify="right")
    scored = [row for row in rows if row["failure"] is None]
    if scored:
        table.add_row("mean reward", f"{sum(row['reward'] for row in scored) / len(scored):.4f}")
        for name in sorted({name for row in scored for name in row["parts"]}):
            values = [row["parts"][name] for row in scored if name in row["parts"]]
            table.add_row(f"part {name}", f"{sum(values) / len(values):.4f}")
    for outcome, count in sorted(Counter(str(row["outcome"]) for row in scored).items()):
        table.add_row(f"outcome {outcome}", str(count))
    for kind, count in sorted(Counter(row["failure"]["type"] for row in rows if row["failure"] is not None).items()):
        table.add_row(f"[red]failure {kind}[/red]", str(count))
    table.add_row("seconds of grading", f"{sum(row['seconds'] for row in rows):.1f}")
    return table
