"""The report's figures: inline SVG, so that the page needs nothing but itself."""

import io
import math
import re
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from temper.orchestrator.evaluation.intervals import accuracy_interval
from temper.orchestrator.evaluation.record import RunRecord
from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.tools.inspect.report.stage_figures import STAGE_FIGURES, Curve

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
ACCURACY = "/avg_at_k"
SIZE = (5.6, 2.9)
WIDE = (11.6, 3.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionedFigure:
    """A figure with its caption."""

    title: str
    note: str
    svg: str
    wide: bool = False


def draw_figures(record: RunRecord) -> list[CaptionedFigure]:
    """Draw every figure that the run has data for, those of the stages by their names."""
    shown = [(stage, drawn, name) for stage, drawn in STAGE_FIGURES.items() for name in record.instances(stage)]
    with matplotlib.rc_context(STYLE):
        rewards = [_rewards(record, name, drawn.rewards) for _, drawn, name in shown if drawn.rewards is not None]
        curves = [_curve(record, one, stage, name) for stage, drawn, name in shown for one in drawn.curves]
        between = [_between(record, name) for stage, _, name in shown]
        made = [_evaluations(record), *between, *rewards, *curves]
    return [figure for figure in made if figure is not None]


def smoothed(values: list[float], *, window: int) -> list[float]:
    """Return a trailing mean over up to `window` finite values; NaN where there is none."""
    result = []
    for end in range(1, len(values) + 1):
        recent = [value for value in values[max(0, end - window) : end] if math.isfinite(value)]
        result.append(sum(recent) / len(recent) if recent else math.nan)
    return result


def _evaluations(record: RunRecord) -> CaptionedFigure | None:
    envs = sorted({env for evaluation in record.evaluations for env in evaluation.envs})
    if not envs:
        return None
    figure, axes = _axes(WIDE)
    width = 0.8 / len(record.evaluations)
    for number, evaluation in enumerate(record.evaluations):
        at = [index + (number - (len(record.evaluations) - 1) / 2) * width for index in range(len(envs))]
        results = [evaluation.envs.get(env) for env in envs]
        heights = [result.avg_at_k if result else math.nan for result in results]
        spans = [(r.avg_at_k - r.interval[0], r.interval[1] - r.avg_at_k) if r else (0.0, 0.0) for r in results]
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(at, heights, width * 0.92, label=f"after {evaluation.label}", color=colour, alpha=0.88)
        axes.errorbar(at, heights, yerr=list(zip(*spans, strict=True)), fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        for x, result in zip(at, results, strict=True):
            if result:
                top, text = (result.interval[1], f"{result.avg_at_k:.2f}") if result.samples else (0.0, "-")
                axes.text(x, top + 0.025, text, ha="center", fontsize=8.5)
    axes.set_xticks(range(len(envs)), envs)
    axes.set_ylim(0, 1.12)
    axes.set_ylabel("avg@k")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left", ncols=len(record.evaluations), bbox_to_anchor=(0, 1.14))
    return CaptionedFigure(
        title="Held-out accuracy",
        note="Share of right answers to held-out tasks among those with a score, drawn as eval.sampling says; bars are 95 % "
        "confidence intervals, a dash is where no answer has a score.",
        svg=inline_svg(figure),
        wide=True,
    )


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
        note="The same held-out tasks each time, answered by the weights after a step; the bands are 95 % intervals over "
        "tasks. A gap is where a score is void or missing.",
        svg=inline_svg(figure),
        wide=True,
    )


def _rewards(record: RunRecord, name: str, note: str) -> CaptionedFigure | None:
    envs = record.envs_of(name)
    if not envs:
        return None
    figure, axes = _axes(WIDE)
    for number, env in enumerate(envs):
        steps, values = record.series(name, f"env/{env}/reward")
        _line(axes, steps, values, label=env, colour=COLOURS[number % len(COLOURS)], smooth=True)
    axes.set_xlabel(f"{name.upper()} step")
    axes.set_ylabel("mean reward")
    axes.legend(ncols=len(envs))
    title = "Reward by environment" if name == "rl" else f"Reward by environment, {name}"
    return CaptionedFigure(title=title, note=note, svg=inline_svg(figure), wide=True)


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
        axes.legend(ncols=len(present))
    else:
        axes.set_ylabel(next(iter(present.values())))
    title = curve.title if instance == stage else f"{curve.title}, {instance}"
    return CaptionedFigure(title=title, note=curve.note, svg=inline_svg(figure))


def _line(axes: Axes, steps: list[int], values: list[float], *, label: str, colour: str, smooth: bool) -> None:
    window = max(1, len(values) // 20)
    if not smooth or window == 1:
        axes.plot(steps, values, color=colour, label=label, linewidth=1.6)
        return
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
    axes.plot(steps, smoothed(values, window=window), color=colour, label=label, linewidth=1.9)


def _axes(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def svg_file(figure: Figure, *, transparent: bool = False) -> str:
    """Return the figure as an SVG document."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=transparent, metadata={"Date": None})
    return buffer.getvalue()


def inline_svg(figure: Figure) -> str:
    """Return the figure as an SVG element that scales with the page."""
    document = svg_file(figure, transparent=True)
    element = document[document.index("<svg") :]
    return re.sub(
        r'(<svg [^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", element, count=1), count=1
    )
