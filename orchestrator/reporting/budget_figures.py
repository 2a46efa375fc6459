"""Figures against the thinking budget: a panel for each environment and measure, a line for each model or setting."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from envs.core.thinking_mode import Mode
from orchestrator.reporting.budget_curve import BudgetPoint
from orchestrator.reporting.figures import COLOURS, INK, STYLE, CaptionedFigure, inline_svg, svg_file
from orchestrator.reporting.record import RunRecord

COLUMNS = 4
"""Most panels beside each other."""
WIDTH, HEIGHT = 11.6, 2.9
MARKERS = {Mode.OFF: "s", Mode.BUDGET: "o", Mode.LOW_EFFORT: "D", Mode.UNLIMITED: "o"}
RIGHT_END = {Mode.LOW_EFFORT: "low", Mode.UNLIMITED: "free"}
"""Modes without a budget stand at the right end, under these words."""
LEGEND = 'An open square is thinking off, "low" a prompt that asks for little thought, "free" no limit.'


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point of a line: a value with what it may lie between. `x` counts in mode budget alone."""

    mode: Mode
    x: float = 0.0
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. All panels of a figure have the same lines, though perhaps empty ones."""

    title: str
    measure: str
    lines: dict[str, list[Dot]]
    is_share: bool = True
    """Whether the values lie between 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What of a point a panel shows."""

    name: str
    value: Callable[[BudgetPoint], float]
    is_share: bool = True


ACCURACY = Measure(name="accuracy", value=lambda point: point.accuracy)
WELL_FORMED = Measure(name="well-formed share", value=lambda point: point.well_formed)
ANSWER = Measure(name="answer tokens of a turn", value=lambda point: point.answer_tokens_turn, is_share=False)


def draw_budget_figures(record: RunRecord) -> list[CaptionedFigure]:
    """Return the figures of a run's curves; none without a curve."""
    if not record.budget_curves:
        return []
    note = f"Held-out accuracy under each thinking budget; bars are 95 % confidence intervals. {LEGEND}"
    other = f"A thought that leaks into the answer makes the answer long and its form bad. {LEGEND}"
    with matplotlib.rc_context(STYLE):
        accuracy, form = (
            _accuracy_figure(record),
            draw(_panels(record, (ANSWER, WELL_FORMED)), x_label="budget, tokens"),
        )
        return [
            CaptionedFigure(title="Accuracy against thinking budget", note=note, svg=inline_svg(accuracy), wide=True),
            CaptionedFigure(
                title="Answer length and form against thinking budget", note=other, svg=inline_svg(form), wide=True
            ),
        ]


def budget_figure_file(record: RunRecord) -> str:
    """Return the figure of the accuracies as an SVG document; the run must have a curve."""
    with matplotlib.rc_context(STYLE):
        return svg_file(_accuracy_figure(record))


def draw(panels: Sequence[Panel], *, x_label: str, bands: bool = False) -> Figure:
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
    return draw(_panels(record, (ACCURACY,)), x_label="budget, tokens")


def _panels(record: RunRecord, measures: Sequence[Measure]) -> list[Panel]:
    curves = record.budget_curves
    envs = sorted({env for by_env in curves.values() for env in by_env})
    return [
        Panel(
            title=env,
            measure=measure.name,
            is_share=measure.is_share,
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
    return Dot(mode=point.mode, x=float(point.budget or 0), value=value, low=low, high=high)


def _draw(axes: Axes, panel: Panel, *, bands: bool) -> None:
    dots = [dot for line in panel.lines.values() for dot in line]
    largest = max((dot.x for dot in dots), default=0.0) or 1.0
    ends = [mode for mode in RIGHT_END if any(dot.mode is mode for dot in dots)]
    place = {mode: largest * (1.0 + 0.16 * number) for number, mode in enumerate(ends, 1)}
    for number, (label, line) in enumerate(panel.lines.items()):
        _line(axes, line, place, label=label, colour=COLOURS[number % len(COLOURS)], bands=bands)
    ticks = [float(tick) for tick in MaxNLocator(5).tick_values(0, largest) if 0 <= tick <= largest]
    axes.set_xticks([*ticks, *place.values()], [*(f"{tick:g}" for tick in ticks), *(RIGHT_END[mode] for mode in ends)])
    axes.set_ylim(bottom=0, top=1.05 if panel.is_share else None)
    axes.set_title(panel.title, fontsize=10, color=INK)


def _line(axes: Axes, line: Sequence[Dot], place: dict[Mode, float], *, label: str, colour: str, bands: bool) -> None:
    """Join the budgets; from the largest of them a dotted line leads to unlimited thought."""
    joined = sorted((dot for dot in line if dot.mode is Mode.BUDGET), key=lambda dot: dot.x)
    free = [dot for dot in line if dot.mode is Mode.UNLIMITED]
    at = [dot.x for dot in joined]
    axes.plot(at, [dot.value for dot in joined], color=colour, linewidth=1.7, label=label)
    tail = [*((dot.x, dot.value) for dot in joined[-1:]), *((place[dot.mode], dot.value) for dot in free)]
    axes.plot([x for x, _ in tail], [y for _, y in tail], color=colour, linewidth=1.2, linestyle=":")
    if bands:
        axes.fill_between(at, [dot.low for dot in joined], [dot.high for dot in joined], color=colour, alpha=0.16)
    for dot in line:
        x = place.get(dot.mode, dot.x)
        if not (bands and dot.mode is Mode.BUDGET):
            spread = [[dot.value - dot.low], [dot.high - dot.value]]
            axes.errorbar([x], [dot.value], yerr=spread, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
        face = "white" if dot.mode is Mode.OFF else colour
        axes.plot([x], [dot.value], MARKERS[dot.mode], color=colour, markerfacecolor=face, markersize=4.5)
