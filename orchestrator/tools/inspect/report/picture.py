"""One picture of a run: held-out accuracy after each stage, and the reward of every step. `result.svg` beside a report.

python -m temper.orchestrator.tools.inspect.report.picture runs/demo --out docs/pictures/result.svg
"""

import argparse
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from temper.orchestrator.evaluation.record import RunRecord, read_run
from temper.orchestrator.tools.inspect.report.figures import COLOURS, STYLE, smoothed, svg_file

SIZE = (11.6, 3.2)
WINDOW = 5


def result_svg(record: RunRecord, *, stage: str | None) -> str:
    """Return the picture as an SVG document on white, legible on light and dark pages.

    `stage` is whose steps are drawn; with None there are accuracies alone. Raise `ValueError` where the run has no evaluation,
    or the stage no rewards.
    """
    if not any(one.envs for one in record.evaluations) or (stage is not None and not record.envs_of(stage)):
        raise ValueError(f"{record.name} has no evaluation, or no rewards of {stage}: a picture needs both")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        panels = figure.subplots(1, 1 if stage is None else 2, squeeze=False)[0]
        _accuracy(panels[0], record)
        if stage is not None:
            _reward(panels[1], record, stage)
        return svg_file(figure)


def _accuracy(axes: Axes, record: RunRecord) -> None:
    """Draw a point for each environment after each evaluated stage, with its value and its 95 % interval."""
    labels = [evaluation.label for evaluation in record.evaluations]
    envs = sorted({env for evaluation in record.evaluations for env in evaluation.envs})
    width = 0.8 / len(envs)
    for number, env in enumerate(envs):
        there = [(index, one.envs[env]) for index, one in enumerate(record.evaluations) if env in one.envs]
        results = [result for _, result in there]
        at = [index + (number - (len(envs) - 1) / 2) * width for index, _ in there]
        heights = [result.avg_at_k for result in results]
        spans = [[r.avg_at_k - r.interval[0] for r in results], [r.interval[1] - r.avg_at_k for r in results]]
        axes.bar(at, heights, width * 0.9, color=COLOURS[number % len(COLOURS)], label=env)
        axes.errorbar(at, heights, yerr=spans, fmt="none", ecolor="#3a4250", elinewidth=1, capsize=2)
        for x, result in zip(at, results, strict=True):
            axes.text(x, result.interval[1] + 0.02, f"{result.avg_at_k:.2f}", ha="center", fontsize=8.5)
    axes.set_xticks(range(len(labels)), [f"after {label}" for label in labels])
    axes.set_ylim(0, 1.1)
    axes.set_title(f"Held-out accuracy, avg@{record.evaluations[0].k}")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left")


def _reward(axes: Axes, record: RunRecord, stage: str) -> None:
    """Draw each environment's mean reward of a step, and its mean over the last steps."""
    for number, env in enumerate(record.envs_of(stage)):
        steps, values = record.series(stage, f"env/{env}/reward")
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
        axes.plot(steps, smoothed(values, window=WINDOW), color=colour, linewidth=1.9, label=env)
    axes.set_xlabel(f"step of {stage}")
    axes.set_title(f"Mean reward of a step; thick: of the last {WINDOW} steps")
    axes.legend(loc="lower right", ncols=3)


def main() -> None:
    """Draw the picture of a run's folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run, such as runs/demo")
    parser.add_argument("--stage", default="rl", help="whose steps are drawn (default: rl)")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file that is written")
    options = parser.parse_args()
    options.out.write_text(result_svg(read_run(options.run), stage=options.stage), encoding="utf-8")


if __name__ == "__main__":
    main()
