"""Figures against the tokens spent under thinking budgets: a panel for each environment and measure, a line for each model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.evaluation.budget_curve import BudgetPoint
from temper.orchestrator.evaluation.record import RunRecord
from temper.orchestrator.tools.inspect.report.figures import COLOURS, INK, STYLE, CaptionedFigure, inline_svg, svg_file

COLUMNS = 4
"""Most panels beside each other."""
WIDTH, HEIGHT = 11.6, 2.9
MARKERS = {Mode.OFF: "s", Mode.BUDGET: "o", Mode.LOW_EFFORT: "D", Mode.UNLIMITED: "^"}
LEGEND = "A square is thinking off, a diamond a prompt that asks for little thought, a triangle no limit."
X_LABEL = "tokens spent"
SHARES, LENGTHS = (0.0, 1.05), (0.0, None)
"""The ends of the axis of shares, and of lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point of a line: a value with its interval. `x` is the mean of the tokens that an episode spent."""

    mode: Mode
    x: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. All panels of a figure have the same lines, though perhaps empty ones."""

    title: str
    measure: str
    lines: dict[str, list[Dot]]
    ends: tuple[float | None, float | None] = SHARES
    """Limits of the axis. None fits them to the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What of a point a panel shows."""

    name: str
    value: Callable[[BudgetPoint], float]
    ends: tuple[float | None, float | None] = SHARES


ACCURACY = Measure(name="accuracy", value=lambda point: point.accuracy)
WELL_FORMED = Measure(name="well-formed share", value=lambda point: point.well_formed)
ANSWER = Measure(name="answer tokens of a turn", value=lambda point: point.answer_tokens_turn, ends=LENGTHS)


def draw_budget_figures(record: RunRecord) -> list[CaptionedFigure]:
    """Return the figures of a run's curves; none without a curve."""
    if not record.budget_curves:
        return []
    note = (
        "Held-out accuracy against the mean tokens that an answer took, thought included, a point for each thinking budget; "
        f"bars are 95 % confidence intervals. {LEGEND}"
    )
    other = f"A thought that leaks into the answer makes the answer long and its form bad. {LEGEND}"
    with matplotlib.rc_context(STYLE):
        accuracy, form = (
            _accuracy_figure(record),
            draw(panels_of(record, (ANSWER, WELL_FORMED))),
        )
        return [
            CaptionedFigure(title="Accuracy against tokens spent", note=note, svg=inline_svg(accuracy), wide=True),
            CaptionedFigure(
                title="Answer length and form against tokens spent", note=other, svg=inline_svg(form), wide=True
            ),
        ]


def budget_figure_file(record: RunRecord) -> str:
    """Return the figure of the accuracies as an SVG document; the run must have a curve."""
    with matplotlib.rc_context(STYLE):
        return svg_file(_accuracy_figure(record))


def draw(panels: Sequence[Panel], *, x_label: str = X_LABEL, bands: bool = False) -> Figure:
    """Draw the panels, those of each measure in rows of their own; all measures have as many.

    With `bands` the spread of a line is a band, otherwise bars.
    """
    each = sum(panel.measure == panels[0].measure for panel in panels)
    across = min(COLUMNS, each)
    rows = math.ceil(each / across)
    down = rows * (len(panels) // each)
    figure = Figure(figsize=(WIDTH, HEIGHT * down + 0.3), layout="constrained")
    FigureCanvasSVG(figure)
    for number, panel in enumerate(panels):
        block, place = divmod(number, each)
        axes = figure.add_subplot(down, across, block * rows * across + place + 1)
        _draw(axes, panel, bands=bands)
        axes.set_xlabel(x_label)
        axes.set_ylabel("" if place % across else panel.measure)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    return figure


def _accuracy_figure(record: RunRecord) -> Figure:
    return draw(panels_of(record, (ACCURACY,)))


def panels_of(record: RunRecord, measures: Sequence[Measure]) -> list[Panel]:
    """Return a panel for each measure and environment, with a line for each evaluation of a run."""
    curves = record.budget_curves
    envs = sorted({env for by_env in curves.values() for env in by_env})
    return [
        Panel(
            title=env,
            measure=measure.name,
            ends=measure.ends,
            lines={
                f"after {label}": [_dot(point, measure) for point in by_env.get(env, []) if point.samples]
                for label, by_env in curves.items()
            },
        )
        for measure in measures
        for env in envs
    ]


def _dot(point: BudgetPoint, measure: Measure) -> Dot:
    value = measure.value(point)
    low, high = point.interval if measure is ACCURACY else (value, value)
    return Dot(mode=point.mode, x=point.tokens, value=value, low=low, high=high)


def _draw(axes: Axes, panel: Panel, *, bands: bool) -> None:
    for number, (label, line) in enumerate(panel.lines.items()):
        _line(axes, line, label=label, colour=COLOURS[number % len(COLOURS)], bands=bands)
    axes.set_xlim(left=0)
    axes.set_ylim(*panel.ends)
    axes.set_title(panel.title, fontsize=10, color=INK)


def _line(axes: Axes, line: Sequence[Dot], *, label: str, colour: str, bands: bool) -> None:
    """Join the budgets; from the largest of them a dotted line leads to unlimited thought."""
    joined = sorted((dot for dot in line if dot.mode is Mode.BUDGET), key=lambda dot: dot.x)
    free = [dot for dot in line if dot.mode is Mode.UNLIMITED]
    at = [dot.x for dot in joined]
    axes.plot(at, [dot.value for dot in joined], color=colour, linewidth=1.7, label=label)
    tail = [*joined[-1:], *free]
    axes.plot([dot.x for dot in tail], [dot.value for dot in tail], color=colour, linewidth=1.2, linestyle=":")
    if bands:
        axes.fill_between(at, [dot.low for dot in joined], [dot.high for dot in joined], color=colour, alpha=0.16)
    for dot in line:
        if not (bands and dot.mode is Mode.BUDGET):
            spread = [[dot.value - dot.low], [dot.high - dot.value]]
            axes.errorbar([dot.x], [dot.value], yerr=spread, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
        face = "white" if dot.mode is Mode.OFF else colour
        axes.plot([dot.x], [dot.value], MARKERS[dot.mode], color=colour, markerfacecolor=face, markersize=4.5)
