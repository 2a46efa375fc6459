"""Pictures of simulated cases: throughput, idle shares and lag over what was varied most, as SVG."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from temper.orchestrator.tools.inspect.report.figures import COLOURS, STYLE, svg_file
from temper.orchestrator.tools.preflight.simulation.study import Row

NAMES = {
    "engines": "engines",
    "max_lag": "max_lag",
    "over_sampling": "over_sampling",
    "tail": "deviation of log length",
    "deaths": "deaths of an engine an hour",
}
PANELS: tuple[tuple[str, Callable[[Row], float]], ...] = (
    ("samples a second", lambda row: row.outcome.samples_per_s),
    ("engines idle", lambda row: row.outcome.engines_idle),
    ("learner idle", lambda row: row.outcome.learner_idle),
    ("mean lag", lambda row: row.outcome.lag_mean),
)


def study_svg(rows: Sequence[Row]) -> str:
    """Draw a panel for each figure over the value that has the most cases, a line for each combination of the others."""
    varied = {name: sorted({asdict(row.case)[name] or 0 for row in rows}) for name in NAMES}
    over = max(varied, key=lambda name: len(varied[name]))
    others = [name for name in NAMES if name != over and len(varied[name]) > 1]
    lines: dict[str, list[Row]] = {}
    for row in rows:
        case = asdict(row.case)
        lines.setdefault(", ".join(f"{NAMES[name]} {case[name] or 0:g}" for name in others), []).append(row)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.6, 2.9), layout="constrained")
        for axes, (title, value) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            axes.set_title(title)
            axes.set_xlabel(NAMES[over])
            _draw(axes, over, lines, value)
        if others:
            figure.axes[0].legend(fontsize=8)
        return svg_file(figure)


def _draw(axes: Axes, over: str, lines: dict[str, list[Row]], value: Callable[[Row], float]) -> None:
    for number, (name, rows) in enumerate(lines.items()):
        drawn = [row for row in rows if row.outcome.steps]
        places = [asdict(row.case)[over] or 0 for row in drawn]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, [value(row) for row in drawn], marker="o", markersize=3.5, color=colour, label=name)
    if over == "engines":
        axes.set_xscale("log", base=2)
    if value is PANELS[0][1] and over == "engines":
        axes.set_yscale("log")
    elif value is not PANELS[0][1]:
        axes.set_ylim(bottom=-0.02)
    else:
        axes.set_ylim(bottom=0)
