"""`temper env grade`: scores given responses to the tasks of a data file, by the code that training uses."""

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
from temper.envs.playback import Scored, turns_of
from temper.orchestrator.tools.debug.grading.scoring_pool import ScoringPool, Script

BAD_ROW = "bad_row"
"""The kind of failure of a response that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A row of the responses: the key that it gives, and the script that it is or why it is none."""

    key: Any
    script: Script | None = None
    mistake: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What a response was worth."""

    response: Response
    scored: Scored

    @property
    def failure(self) -> dict[str, str] | None:
        """Why there is no reward, as type and message."""
        if self.response.script is None:
            return {"type": BAD_ROW, "message": self.response.mistake}
        failure = self.scored.failure
        return None if failure is None else {"type": failure.kind.value, "message": failure.message}

    def as_json(self) -> dict[str, Any]:
        """Return the row of the results."""
        verdict = self.scored.verdict
        return {
            "key": self.response.key,
            "reward": self.scored.reward,
            "parts": verdict.parts,
            "outcome": None if verdict.outcome is None else verdict.outcome.value,
            "failure": self.failure,
            "detail": verdict.detail,
            "seconds": round(self.scored.seconds, 4),
        }


def grade(tasks: dict[str, Task], responses: Path, out: Path, *, workers: int) -> bool:
    """Write one row per response, in their order; return whether every one has a reward.

    A response row that can't be read, or whose key no task has, gets a failure of type `bad_row`, never a reward.
    Rows are written as they come: what was done before an interruption is in the file.
    """
    given = _read(responses, tasks)
    results: list[Graded] = []
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
            scored = Scored(reward=None) if response.script is None else next(scores)
            results.append(Graded(response=response, scored=scored))
            file.write(json.dumps(results[-1].as_json()) + "\n")
            file.flush()
            bar.advance(step)
    Console().print(summary(results))
    return all(graded.failure is None for graded in results)


def _read(path: Path, tasks: dict[str, Task]) -> list[Response]:
    """Read the responses to these tasks, in their order."""

    def parse(row: dict[str, Any], _number: int) -> Response:
        key = row.get("key")
        if str(key) not in tasks:
            known = f"the file has {len(tasks)}, for example {next(iter(tasks))!r}"
            return Response(key=key, mistake=f"no task has the key {key!r}; {known}")
        try:
            return Response(key=key, script=(tasks[str(key)], turns_of(row)))
        except ValueError as error:
            return Response(key=key, mistake=str(error))

    return read_rows(DataConfig(path=str(path)), parse=parse, on_error="raise")[0]


def summary(results: list[Graded]) -> Table:
    """Lay out the counts, means and failures of graded responses."""
    table = Table(title=f"{len(results)} responses")
    table.add_column("")
    table.add_column("value", justify="right")
    scored = [graded.scored for graded in results if graded.failure is None]
    rewards = [one.reward for one in scored if one.reward is not None]
    if rewards:
        table.add_row("mean reward", f"{fmean(rewards):.4f}")
        for name in sorted({name for one in scored for name in one.verdict.parts}):
            values = [one.verdict.parts[name] for one in scored if name in one.verdict.parts]
            table.add_row(f"part {name}", f"{fmean(values):.4f}")
    for outcome, count in sorted(
        Counter(str(row.as_json()["outcome"]) for row in results if row.failure is None).items()
    ):
        table.add_row(f"outcome {outcome}", str(count))
    for kind, count in sorted(Counter(row.failure["type"] for row in results if row.failure is not None).items()):
        table.add_row(f"[red]failure {kind}[/red]", str(count))
    table.add_row("seconds of grading", f"{sum(row.scored.seconds for row in results):.1f}")
    return table
