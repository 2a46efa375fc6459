"""The figures of a report as inline SVG, also written as separate pictures."""

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.evaluation.budget_curve import BudgetPoint
from temper.orchestrator.evaluation.intervals import accuracy_interval
from temper.orchestrator.evaluation.record import RunRecord
from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.run.progress import ACCURACY
from temper.orchestrator.tools.inspect.report.stage_figures import CURVES, REWARDS, Curve

COLOURS = ("#2f6fde", "#e0782f", "#2a9d6f", "#b04fc4", "#c43d4b", "#7a7f87", "#8a6d3b", "#159aa8")
INK = "#3a4250"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "temper",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.edgecolor": "#c9ced6",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8ebef",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
SIZE = (5.6, 2.9)
WIDE = (11.6, 3.1)
COLUMNS = 4
"""Most panels in a row."""
LEGEND_COLUMNS = 3
MARKERS = {Mode.OFF: "s", Mode.BUDGET: "o", Mode.LOW_EFFORT: "D", Mode.UNLIMITED: "^"}
LEGEND = "A square is thinking off, a diamond a prompt for little thinking, a triangle no limit."
SHARES, LENGTHS = (0.0, 1.05), (0.0, None)
"""The ends of the axis of shares, and of lengths."""
PALE = 0.4
"""The opacity of points off the frontier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionedFigure:
    """A figure with its caption."""

    title: str
    note: str
    document: str
    """The figure as an SVG document."""
    wide: bool = True
    file: str | None = None
    """The file to write the document to, for pages that show only pictures."""

    @property
    def svg(self) -> str:
        """The figure as an SVG element that scales with the page."""
        element = self.document[self.document.index("<svg") :]
        for side in ("height", "width"):
            element = re.sub(rf'(<svg [^>]*?) {side}="[^"]*"', r"\1", element, count=1)
        return element


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point of a line: a value with its interval. `x` is the mean number of tokens per episode."""

    mode: Mode
    x: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of axes against tokens spent. All panels of a figure have the same lines, some of them empty."""

    title: str
    measure: str
    lines: dict[str, list[Dot]]
    ends: tuple[float | None, float | None] = SHARES
    """Limits of the axis. None fits the values."""
    joins_frontier: bool = False
    """Whether a line connects the Pareto frontier instead of the budgets."""


def draw_figures(record: RunRecord) -> list[CaptionedFigure]:
    """Draw every figure that the run has data for, the result first."""
    rewarded = {
        name: note for stage, note in REWARDS.items() for name in record.instances(stage) if record.envs_of(name)
    }
    shown = [(curve, stage, name) for stage in CURVES for name in record.instances(stage) for curve in CURVES[stage]]
    with matplotlib.rc_context(STYLE):
        result = _result(record, *list(rewarded.items())[-1:])
        others = list(rewarded)[: -1 if result else None]
        rewards = [_rewards(record, name, rewarded[name]) for name in others]
        step_evaluations = [
            _between(record, name) for stage in dict.fromkeys((*CURVES, *REWARDS)) for name in record.instances(stage)
        ]
        curves = [_curve(record, curve, stage, name) for curve, stage, name in shown]
    return [figure for figure in (result, *step_evaluations, *rewards, *curves) if figure is not None]


def draw_budget_figures(record: RunRecord) -> list[CaptionedFigure]:
    """Draw accuracy, answer length and form against the thinking budget. Empty without a curve."""
    if not record.budget_curves:
        return []
    note = (
        "Held-out accuracy against mean tokens per answer, including thinking, one point per thinking budget. "
        "The line connects the Pareto frontier. Pale points have at most the accuracy of a point with as few tokens or fewer. "
        f"Bars are 95 % confidence intervals. {LEGEND}"
    )
    other = f"Thinking that leaks into the answer makes it long and badly formed. {LEGEND}"
    length = budget_panels(record, "answer tokens of a turn", lambda point: point.answer_tokens_turn, ends=LENGTHS)
    form = budget_panels(record, "well-formed share", lambda point: point.well_formed)
    return [
        caption_panels("Accuracy against tokens spent", note, accuracy_panels(record), file="curves.svg"),
        caption_panels("Answer length and form against tokens spent", other, [*length, *form]),
    ]


def _result(record: RunRecord, *rewarded: tuple[str, str]) -> CaptionedFigure | None:
    """Draw the accuracies, and the rewards of the last stage with rewards, given as name and note."""
    if not any(evaluation.envs for evaluation in record.evaluations):
        return None
    figure = Figure(figsize=WIDE, layout="constrained")
    axes = figure.subplots(1, 1 + len(rewarded), squeeze=False)[0]
    _draw_accuracy(axes[0], record)
    axes[0].set_title(f"Held-out accuracy, avg@{record.evaluations[0].k}")
    note = (
        "Share of correct held-out answers, sampled with eval.sampling. Bars are 95 % "
        "confidence intervals. A dash has no scored answers."
    )
    for name, of_rewards in rewarded:
        _draw_rewards(axes[1], record, name)
        axes[1].set_title("Mean reward of a step")
        note += f" {of_rewards}"
    title = "Held-out accuracy and reward by environment" if rewarded else "Held-out accuracy"
    return CaptionedFigure(title=title, note=note, document=svg_document(figure), file="result.svg")


def _draw_accuracy(axes: Axes, record: RunRecord) -> None:
    """Draw a bar with its 95 % interval for each environment and evaluation."""
    envs = sorted({env for evaluation in record.evaluations for env in evaluation.envs})
    width = 0.8 / len(envs)
    for number, env in enumerate(envs):
        there = [(index, one.envs[env]) for index, one in enumerate(record.evaluations) if env in one.envs]
        results = [result for _, result in there]
        at = [index + (number - (len(envs) - 1) / 2) * width for index, _ in there]
        heights = [result.avg_at_k for result in results]
        spans = [[r.avg_at_k - r.interval[0] for r in results], [r.interval[1] - r.avg_at_k for r in results]]
        axes.bar(at, heights, width * 0.9, color=COLOURS[number % len(COLOURS)], label=env)
        axes.errorbar(at, heights, yerr=spans, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        for x, result in zip(at, results, strict=True):
            top, text = (result.interval[1], f"{result.avg_at_k:.2f}") if result.samples else (0.0, "-")
            axes.text(x, top + 0.02, text, ha="center", fontsize=8.5)
    axes.set_xticks(range(len(record.evaluations)), [f"after {one.label}" for one in record.evaluations])
    axes.set_ylim(0, 1.12)
    axes.set_ylabel("avg@k")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left", ncols=len(envs))


def _between(record: RunRecord, name: str) -> CaptionedFigure | None:
    """Draw the evaluations between the steps of an instance."""
    stage = evaluations_of(name)
    names = {name for row in record.rows if row.stage == stage for name in row.values}
    envs = sorted(name.removesuffix(ACCURACY) for name in names if name.endswith(ACCURACY))
    if not envs:
        return None
    figure, axes = _axes(WIDE)
    for number, env in enumerate(envs):
        colour = COLOURS[number % len(COLOURS)]
        steps, values = record.series(stage, f"{env}{ACCURACY}")
        errors, tasks, samples = (record.series(stage, f"{env}/{name}")[1] for name in ("stderr", "tasks", "samples"))
        ends = [
            accuracy_interval(value, stderr=error, tasks=int(of), samples=int(count))
            for value, error, of, count in zip(values, errors, tasks, samples, strict=True)
        ]
        low, high = [end for end, _ in ends], [end for _, end in ends]
        axes.plot(steps, values, color=colour, label=env, linewidth=1.8, marker="o", markersize=3)
        axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xlabel(f"{name.upper()} step")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("avg@k")
    axes.legend(ncols=len(envs))
    return CaptionedFigure(
        title=f"Held-out accuracy during {name}",
        note="The same held-out tasks each time, answered by the weights after a step. Bands are 95 % intervals over "
        "tasks. A break is a stale or missing score.",
        document=svg_document(figure),
    )


def _rewards(record: RunRecord, name: str, note: str) -> CaptionedFigure:
    figure, axes = _axes(WIDE)
    _draw_rewards(axes, record, name)
    title = "Reward by environment" if name == "rl" else f"Reward by environment, {name}"
    return CaptionedFigure(title=title, note=note, document=svg_document(figure))


def _draw_rewards(axes: Axes, record: RunRecord, name: str) -> None:
    for number, env in enumerate(record.envs_of(name)):
        steps, values = record.series(name, f"env/{env}/reward")
        _line(axes, steps, values, label=env, colour=COLOURS[number % len(COLOURS)], smooth=True)
    axes.set_xlabel(f"step of {name}")
    axes.set_ylabel("mean reward")
    axes.legend(ncols=3)


def _curve(record: RunRecord, curve: Curve, stage: str, instance: str) -> CaptionedFigure | None:
    present = {name: label for name, label in curve.metrics.items() if record.series(instance, name)[0]}
    if not present:
        return None
    figure, axes = _axes(SIZE)
    for number, (name, label) in enumerate(present.items()):
        steps, values = record.series(instance, name)
        _line(axes, steps, values, label=label, colour=COLOURS[number], smooth=curve.smooth)
    axes.set_xlabel(f"{instance.upper()} step")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if len(present) > 1:
        axes.legend(ncols=min(LEGEND_COLUMNS, len(present)))
    else:
        axes.set_ylabel(next(iter(present.values())))
    title = curve.title if instance == stage else f"{curve.title}, {instance}"
    return CaptionedFigure(title=title, note=curve.note, document=svg_document(figure), wide=False)


def accuracy_panels(record: RunRecord) -> list[Panel]:
    """Return an accuracy panel per environment, with the Pareto frontier of each evaluation."""
    panels = budget_panels(record, "accuracy", lambda point: point.accuracy, interval=lambda point: point.interval)
    return [replace(panel, joins_frontier=True) for panel in panels]


def pareto_frontier(line: Sequence[Dot]) -> list[Dot]:
    """Return the dots by tokens, each with a larger value than all dots with fewer tokens."""
    kept = list[Dot]()
    for dot in sorted(line, key=lambda dot: (dot.x, -dot.value)):
        if not kept or dot.value > kept[-1].value:
            kept.append(dot)
    return kept


def budget_panels(
    record: RunRecord,
    measure: str,
    value: Callable[[BudgetPoint], float],
    *,
    interval: Callable[[BudgetPoint], tuple[float, float]] | None = None,
    ends: tuple[float | None, float | None] = SHARES,
) -> list[Panel]:
    """Return a panel of a measure per environment, with a line per evaluation of a run."""
    curves = record.budget_curves

    def dots(points: Iterable[BudgetPoint]) -> list[Dot]:
        found = []
        for point in points:
            low, high = interval(point) if interval is not None else (value(point), value(point))
            if point.samples:
                found.append(Dot(mode=point.mode, x=point.tokens, value=value(point), low=low, high=high))
        return found

    return [
        Panel(
            title=env,
            measure=measure,
            ends=ends,
            lines={f"after {label}": dots(by_env.get(env, [])) for label, by_env in curves.items()},
        )
        for env in sorted({env for by_env in curves.values() for env in by_env})
    ]


def caption_panels(title: str, note: str, panels: Sequence[Panel], *, file: str | None = None) -> CaptionedFigure:
    """Return a figure of panels."""
    with matplotlib.rc_context(STYLE):
        return CaptionedFigure(title=title, note=note, document=svg_document(_draw(panels)), file=file)


def _draw(panels: Sequence[Panel]) -> Figure:
    """Draw panels against tokens spent, at most `COLUMNS` in a row."""
    across = min(COLUMNS, len({panel.title for panel in panels}))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(WIDE[0], 2.9 * down + 0.3), layout="constrained")
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(down, across, place)
        for number, (label, line) in enumerate(panel.lines.items()):
            colour = COLOURS[number % len(COLOURS)]
            _budget_line(axes, line, label=label, colour=colour, joins_frontier=panel.joins_frontier)
        axes.set_xlim(left=0)
        axes.set_ylim(*panel.ends)
        axes.set_title(panel.title, fontsize=10, color=INK)
        axes.set_xlabel("tokens spent")
        axes.set_ylabel(panel.measure)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    return figure


def _budget_line(axes: Axes, line: Sequence[Dot], *, label: str, colour: str, joins_frontier: bool) -> None:
    """Connect the Pareto frontier, or the budgets with a dotted line from the largest one to unlimited thinking."""
    budgets = sorted((dot for dot in line if dot.mode is Mode.BUDGET), key=lambda dot: dot.x)
    joined = pareto_frontier(line) if joins_frontier else budgets
    axes.plot([dot.x for dot in joined], [dot.value for dot in joined], color=colour, linewidth=1.7, label=label)
    if not joins_frontier:
        tail = [*budgets[-1:], *(dot for dot in line if dot.mode is Mode.UNLIMITED)]
        axes.plot([dot.x for dot in tail], [dot.value for dot in tail], color=colour, linewidth=1.2, linestyle=":")
    for dot in line:
        alpha = PALE if joins_frontier and dot not in joined else 1.0
        spread = [[dot.value - dot.low], [dot.high - dot.value]]
        axes.errorbar(
            [dot.x], [dot.value], yerr=spread, fmt="none", ecolor=colour, elinewidth=1, capsize=2, alpha=alpha
        )
        face = "white" if dot.mode is Mode.OFF else colour
        axes.plot([dot.x], [dot.value], MARKERS[dot.mode], color=colour, mfc=face, markersize=4.5, alpha=alpha)


def trailing_mean(values: list[float], *, window: int) -> list[float]:
    """Return a trailing mean over up to `window` finite values. NaN if there are none."""
    result = []
    for end in range(1, len(values) + 1):
        recent = [value for value in values[max(0, end - window) : end] if math.isfinite(value)]
        result.append(sum(recent) / len(recent) if recent else math.nan)
    return result


def _line(axes: Axes, steps: list[int], values: list[float], *, label: str, colour: str, smooth: bool) -> None:
    window = max(1, len(values) // 20)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if not smooth or window == 1:
        only = "o" if len(values) == 1 else ""  # a line through one point is invisible
        axes.plot(steps, values, color=colour, label=label, linewidth=1.6, marker=only)
        return
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
    axes.plot(steps, trailing_mean(values, window=window), color=colour, label=label, linewidth=1.9)


def _axes(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def svg_document(figure: Figure) -> str:
    """Return the figure as an SVG document."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
