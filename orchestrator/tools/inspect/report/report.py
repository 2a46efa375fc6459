"""The report of a run: `report.json` for programs and `report.html` for people."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from temper.orchestrator.evaluation.outcome import describe_outcome
from temper.orchestrator.evaluation.pairs import all_pairs
from temper.orchestrator.evaluation.record import RunRecord, read_run
from temper.orchestrator.pipeline.overlaps import read_overlaps
from temper.orchestrator.run.folder import write_json
from temper.orchestrator.run.progress import clock_text
from temper.orchestrator.tools.inspect.report.figures import draw_budget_figures, draw_figures
from temper.orchestrator.tools.inspect.report.overview import accuracy_changes, describe_run
from temper.orchestrator.tools.inspect.report.pairs import format_p
from temper.orchestrator.tools.inspect.report.transcripts import pick_transcripts

ROW, CELL, TAG = (
    re.compile(r"<tr.*?</tr>", re.DOTALL),
    re.compile(r"<t[hd]\b.*?</t[hd]>", re.DOTALL),
    re.compile(r"<[^>]*>"),
)
EMPTY = ("", "-", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPaths:
    """The files of a report."""

    html: Path
    json: Path
    pictures: tuple[Path, ...] = ()
    """`result.svg` if the run was evaluated, `curves.svg` if it has accuracy against thinking budget."""


def write_report(run_dir: Path) -> ReportPaths:
    """Write the report of a run, finished or not.

    Raise `FileNotFoundError` or `ValueError` if the folder has no run, or a file in it is broken.
    """
    record = read_run(run_dir)
    figures, budget_figures = draw_figures(record), draw_budget_figures(record)
    results = [one for one in figures[:1] if one.file is not None]
    kept = {run_dir / one.file: one.document for one in (*figures, *budget_figures) if one.file is not None}
    paths = ReportPaths(html=run_dir / "report.html", json=run_dir / "report.json", pictures=tuple(kept))
    pairs = all_pairs(record.evaluations)
    overlaps = read_overlaps(run_dir)
    further = {"pairs": [pair.as_json() for pair in pairs], "overlaps": [asdict(overlap) for overlap in overlaps]}
    write_json(paths.json, summary(record) | further)
    values = {
        "record": record,
        "pairs": pairs,
        "overlaps": overlaps,
        "total_seconds": sum(record.stage_seconds.values()),
        "outcome": describe_outcome(record),
        "facts": describe_run(record, run_dir),
        "changes": accuracy_changes(record),
        "results": results,
        "curves": figures[len(results) :],
        "budget_figures": budget_figures,
        "transcripts": pick_transcripts(run_dir / "trajectories"),
        "config": yaml.safe_dump(record.config, sort_keys=False),
    }
    paths.html.write_text(render("report.html.jinja", values), encoding="utf-8")
    for path, document in kept.items():
        path.write_text(document, encoding="utf-8")
    return paths


def summary(record: RunRecord) -> dict[str, Any]:
    """Return `report.json` without the comparisons."""
    tables = [asdict(evaluation) for evaluation in record.evaluations]
    for table, evaluation in zip(tables, record.evaluations, strict=True):
        for env, result in evaluation.envs.items():
            table["envs"][env]["interval"] = list(result.interval)
        del table["curve"], table["tasks"]  # `curves` has the first, and the second is long
    found: dict[str, Any] = {
        "run": record.name,
        "seed": record.seed,
        "stages": [{"name": name, "seconds": seconds} for name, seconds in record.stage_seconds.items()],
        "total_seconds": sum(record.stage_seconds.values()),
        "engine_start_s": record.engine_start_s,
        "evaluation": tables,
        "accuracy": accuracy_table(record),
        "final_metrics": record.final_metrics(),
        "alarms": [asdict(alarm) for alarm in record.alarms],
        "events": [asdict(event) for event in record.events],
        "outcome": describe_outcome(record),
    }
    if record.budget_curves:
        found["curves"] = {
            label: {env: [point.as_json() for point in points] for env, points in by_env.items()}
            for label, by_env in record.budget_curves.items()
        }
        for point in (point for by_env in found["curves"].values() for points in by_env.values() for point in points):
            del point["scores"]  # they are long
    return found


def accuracy_table(record: RunRecord) -> dict[str, dict[str, float]]:
    """Return avg@k by environment, then by evaluation."""
    envs = sorted({env for evaluation in record.evaluations for env in evaluation.envs})
    return {env: {e.label: e.envs[env].avg_at_k for e in record.evaluations if env in e.envs} for env in envs}


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template of this folder with escaped values."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clock"] = clock_text
    environment.filters["number"] = _number
    environment.filters["filled_columns"] = filled_columns
    environment.filters["format_p"] = format_p
    return environment.get_template(template).render(values)


def filled_columns(table: str) -> str:
    """Return an HTML table without the columns whose cells are all empty, "-" or "0"."""
    rows = [CELL.findall(row) for row in ROW.findall(table)]
    texts = [[TAG.sub("", cell) for cell in row] for row in rows]
    filled = [any(text not in EMPTY for text in column[1:]) for column in zip(*texts, strict=True)]
    kept = (iter([cell for cell, keep in zip(row, filled, strict=True) if keep]) for row in rows)
    return ROW.sub(lambda row: f"{row[0][: row[0].index('>') + 1]}{''.join(next(kept))}</tr>", table)


def _number(value: float | None, digits: int = 2) -> str:
    """Format a number for a table, or a dash."""
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"
