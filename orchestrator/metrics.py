"""The metrics file of a run: `metrics.jsonl`, one flat object a line, each (stage, step) once."""

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

HEAD = ("stage", "step", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """What one step measured. `time` is in seconds since 1970; a value that was not finite is NaN."""

    stage: str
    step: int
    time: float
    values: dict[str, float]


class MetricsLog:
    """Appends rows to a metrics file. A line that a killed process left half written is removed when the log opens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists():
            _write_whole(path, _whole_lines(path))

    def append(self, stage: str, step: int, metrics: dict[str, float]) -> None:
        """Add the row of one step. Raises `ValueError` where a metric has the name of a head field."""
        clash = [name for name in HEAD if name in metrics]
        if clash:
            raise ValueError(f"metric {clash[0]!r} has the name of a head field; call it differently")
        values = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = json.dumps({"stage": stage, "step": step, "time": round(time.time(), 3)} | values, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def truncate(self, stage: str, after_step: int) -> None:
        """Forget the rows of `stage` beyond `after_step`: a resumed stage measures those steps again."""
        if not self._path.exists():
            return
        kept = [line for line in _whole_lines(self._path) if not _is_after(line, stage, after_step)]
        _write_whole(self._path, kept)


def read_metrics(path: Path) -> list[MetricsRow]:
    """The rows of a metrics file in order; none where there is no file. A torn last line is left out.

    Raises `ValueError` with file and line number where a line inside the file is no metrics row.
    """
    if not path.exists():
        return []
    return [_row(line, path, number) for number, line in enumerate(_whole_lines(path), 1)]


def _row(line: str, path: Path, number: int) -> MetricsRow:
    try:
        fields = json.loads(line)
        stage, step, when = (fields.pop(name) for name in HEAD)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}, line {number} is no metrics row: {line[:80]!r}") from error
    values = {name: math.nan if value is None else float(value) for name, value in fields.items()}
    return MetricsRow(stage=stage, step=step, time=when, values=values)


def _whole_lines(path: Path) -> list[str]:
    """The lines that end in a newline: `append` writes a row and its newline at once."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def _is_after(line: str, stage: str, after_step: int) -> bool:
    fields = json.loads(line)
    return bool(fields["stage"] == stage and fields["step"] > after_step)


def _write_whole(path: Path, lines: list[str]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
