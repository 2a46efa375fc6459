"""`temper env grade`: score responses to the tasks of a data file with the code that training uses."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.data.rows import read_rows
from temper.envs.transcript import TranscriptScore, read_transcript_turns
from temper.orchestrator.tools.debug.grading.scoring_pool import ScoringPool, Script

BAD_ROW = "bad_row"
"""The failure kind of an unreadable response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response row: its key, and its script or the error."""

    key: Any
    script: Script | None = None
    mistake: str = ""

    def result(self, scored: TranscriptScore | None) -> dict[str, Any]:
        """Return the row of the results. `scored` is None without a script."""
        scored = scored or TranscriptScore(reward=None)
        failed, outcome = scored.failure, scored.score.outcome
        failure = None if failed is None else {"type": failed.kind.value, "message": failed.message}
        if self.script is None:
            failure = {"type": BAD_ROW, "message": self.mistake}
        return {
            "key": self.key,
            "reward": scored.reward,
            "parts": scored.score.parts,
            "outcome": None if outcome is None else outcome.value,
            "failure": failure,
            "detail": scored.score.detail,
            "seconds": round(scored.seconds, 4),
        }


def grade(tasks: dict[str, Task], responses: Path, out: Path, *, workers: int) -> bool:
    """Write one row per response, in order.

    Return whether every row has a reward. A response that cannot be read, or whose key matches no task, gets a failure of kind
    `bad_row`. Rows are written at once, so an interruption loses nothing.
    """
    given = _read(responses, tasks)
    rows: list[dict[str, Any]] = []
    bar = Progress(
        TextColumn("grading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    scripts = (response.script for response in given if response.script is not None)
    with (
        bar,
        ScoringPool(workers) as pool,
        closing(pool.scores(scripts)) as scores,  # before the pool: else it begins processes that nobody ends
        out.open("w", encoding="utf-8") as file,
    ):
        step = bar.add_task("", total=len(given))
        for response in given:
            rows.append(response.result(None if response.script is None else next(scores)))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
            bar.advance(step)
    Console().print(_summary(rows))
    return all(row["failure"] is None for row in rows)


def _read(path: Path, tasks: dict[str, Task]) -> list[Response]:
    """Read the responses to these tasks, in their order."""

    def parse(row: dict[str, Any], _number: int) -> Response:
        key = row.get("key")
        if str(key) not in tasks:
            known = f"the file has {len(tasks)}, for example {next(iter(tasks))!r}"
            return Response(key=key, mistake=f"no task has the key {key!r}. {known}")
        try:
            return Response(key=key, script=(tasks[str(key)], read_transcript_turns(row)))
        except ValueError as error:
            return Response(key=key, mistake=str(error))

    return read_rows(DataConfig(path=str(path)), parse=parse, on_error="raise")[0]


def _summary(rows: list[dict[str, Any]]) -> Table:
    """Return the counts, means and failures of results."""
    table = Table(title=f"{len(rows)} responses")
    table.add_column("")
    table.add_column("value", justify="right")
    scored = [row for row in rows if row["failure"] is None]
    if rewards := [row["reward"] for row in scored if row["reward"] is not None]:
        table.add_row("mean reward", f"{fmean(rewards):.4f}")
        for name in sorted({name for row in scored for name in row["parts"]}):
            values = [row["parts"][name] for row in scored if name in row["parts"]]
            table.add_row(f"part {name}", f"{fmean(values):.4f}")
    for outcome, count in sorted(Counter(str(row["outcome"]) for row in scored).items()):
        table.add_row(f"outcome {outcome}", str(count))
    for kind, count in sorted(Counter(row["failure"]["type"] for row in rows if row["failure"] is not None).items()):
        table.add_row(f"[red]failure {kind}[/red]", str(count))
    table.add_row("seconds of grading", f"{sum(row['seconds'] for row in rows):.1f}")
    return table
