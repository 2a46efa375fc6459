"""The files of answers that a run has left, and their rows, read line by line."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from temper.orchestrator.run.folder import RunDir

Row = dict[str, Any]
"""A line of `trajectories/`, as `temper.rollout.trajectory_json` writes it."""
Kind = Literal["step", "evaluation"]
BETWEEN = re.compile(r"(?P<stage>.+)\.eval-(?P<step>\d+)")
STEP = re.compile(r"(?P<stage>.+)-(?P<step>\d+)")
EVALUATION = "eval-"
OF_ROW = {
    *("ticket", "admitted", "sampling", "env", "key", "thinking", "messages", "reward", "parts", "stop", "failure"),
    *("seconds", "turns"),
}
OF_TURN = {
    *("context_ids", "sampled_ids", "logprobs", "versions", "injected", "text", "reasoning", "answer", "observation"),
    *("thinking_tokens", "closed", "faults", "times"),
}
"""The keys of a row and of its turns in every trajectory file."""
PIECE_BYTES = 1_000_000
"""Approximate bytes of a piece, which is read, sent and decoded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """A trajectory file of a trained step or of an evaluation."""

    path: Path
    kind: Kind
    label: str
    """Its name in the command: `rl/30` for a step, `rl` or `rl/30` for an evaluation."""
    time: float
    """Of the last change, in seconds since 1970."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    def mark(self) -> str:
        """Return an identifier of this version of the file: a run that goes back writes a step again."""
        status = self.path.stat()
        return f"{status.st_mtime_ns}-{status.st_size}"

    def about(self) -> dict[str, Any]:
        """Return its entry in a list of files, as plain JSON data."""
        path, size = shlex.quote(str(self.path)), self.path.stat().st_size
        return {"name": self.name, "kind": self.kind, "label": self.label, "path": path, "bytes": size}


@dataclass(slots=True)
class Lines:
    """The rows of a file by their places in it, so that a few are read again without the others."""

    path: Path
    ends: list[int] = field(default_factory=lambda: [0])
    """The end offset of each row in bytes, after a leading 0."""

    def rows(self) -> Iterator[Row]:
        """Yield all rows in order, and remember their offsets. An incomplete last line is skipped.

        Raise `ValueError` with the line number for a line without JSON or without an answer.
        """
        self.ends = [0]
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                self.ends.append(self.ends[-1] + len(line))
                try:
                    row = _read(line)
                except ValueError as error:
                    raise ValueError(f"{self.path}, line {number} is not JSON: {error}") from error
                if not _is_answer(row):
                    raise ValueError(f"{self.path}, line {number} is not an answer of a run")
                yield row

    def some(self, first: int, count: int) -> list[Row]:
        """Return some rows that were read before."""
        wanted = self.ends[first : first + count + 1]
        with self.path.open("rb") as file:
            file.seek(wanted[0])
            return [_read(file.read(end - start)) for start, end in pairwise(wanted)]

    def pieces(self, tickets: Sequence[int]) -> list[tuple[int, int]]:
        """Return pieces of whole groups as (first row, number of rows). `tickets` has one entry per row."""
        rows, firsts = len(self.ends) - 1, [0]
        for number in range(1, rows):
            is_large = self.ends[number] - self.ends[firsts[-1]] >= PIECE_BYTES
            if is_large and tickets[number] != tickets[number - 1]:
                firsts.append(number)
        return [(first, end - first) for first, end in pairwise([*firsts, rows])] if rows else []


def _read(line: bytes) -> Row:
    """Return a row. Numbers that are not finite become null."""
    try:
        row: Row = msgspec.json.decode(line)
    except msgspec.DecodeError:  # Python writes NaN, which JSON does not allow
        row = json.loads(line, parse_constant=lambda _: None)
    return row


def _is_answer(row: Any) -> bool:
    """Return whether a line has all keys of an answer."""
    if not isinstance(row, dict) or not row.keys() >= OF_ROW or not isinstance(row["turns"], list):
        return False
    return all(isinstance(turn, dict) and turn.keys() >= OF_TURN for turn in row["turns"])


def recorded_files(run: RunDir) -> list[RecordedFile]:
    """Return the files of answers of a run, the newest first."""
    found = [_recorded(path) for path in run.trajectories.glob("*.jsonl")]
    return sorted((one for one in found if one is not None), key=lambda one: (one.time, one.name), reverse=True)


def _recorded(path: Path) -> RecordedFile | None:
    name, time = path.stem, path.stat().st_mtime
    if name.startswith(EVALUATION):
        return RecordedFile(path=path, kind="evaluation", label=name.removeprefix(EVALUATION), time=time)
    if (step_evaluations := BETWEEN.fullmatch(name)) is not None:
        return RecordedFile(
            path=path, kind="evaluation", label=f"{step_evaluations['stage']}/{step_evaluations['step']}", time=time
        )
    if (step := STEP.fullmatch(name)) is not None:
        return RecordedFile(path=path, kind="step", label=f"{step['stage']}/{step['step']}", time=time)
    return None


def find_file(run: RunDir, *, step: str | None = None, evaluation: str | None = None) -> RecordedFile:
    """Return the file of a step (`30`, `rl/30`) or evaluation (`rl`, `rl/30`). The default is the newest step, or else the
    newest file.

    Raise `ValueError` with the available files if there is none or more than one.
    """
    files = recorded_files(run)
    if not files:
        raise ValueError(f"{run.trajectories} has no answers yet: steps and evaluations write them")
    wanted, kind = (step, "step") if step is not None else (evaluation, "evaluation")
    if wanted is None:
        return next((one for one in files if one.kind == "step"), files[0])
    of_kind = [one for one in files if one.kind == kind]
    found = [one for one in of_kind if wanted in (one.label, one.name)]
    if not found and kind == "step":
        found = [one for one in of_kind if one.label.rpartition("/")[2] == wanted]
    if len(found) == 1:
        return found[0]
    there = ", ".join(sorted((one.label for one in found or of_kind), key=_by_number)) or "none"
    raise ValueError(
        f"--{kind} {wanted}: {run.root} has {'several files' if found else 'no file'} with this number. It has {there}"
    )


def _by_number(label: str) -> tuple[str, int]:
    stage, _, step = label.rpartition("/")
    return (stage, int(step)) if step.isdigit() else (label, -1)
