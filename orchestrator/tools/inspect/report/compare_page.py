"""The page of a comparison, and its JSON."""

from pathlib import Path

import matplotlib

from temper.orchestrator.run.folder import write_json
from temper.orchestrator.tools.inspect.report.budget_figures import LEGEND, LENGTHS, SHARES, X_LABEL, Dot, Panel, draw
from temper.orchestrator.tools.inspect.report.compare import GroupComparison
from temper.orchestrator.tools.inspect.report.figures import STYLE, CaptionedFigure, inline_svg
from temper.orchestrator.tools.inspect.report.report import render

TEMPLATE = "compare.html.jinja"
DRAWN = {
    "accuracy": "accuracy",
    "well_formed": "well-formed share",
    "answer_tokens_turn": "answer tokens of a turn",
}
"""The measures that are drawn, and what stands at their axes."""


def write_comparison(comparison: GroupComparison, out: Path) -> Path:
    """Write the page, and the JSON beside it; return the JSON's path."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(".json")
    write_json(beside, comparison.as_json())
    out.write_text(
        render(TEMPLATE, {"comparison": comparison, "figures": draw_comparison(comparison)}), encoding="utf-8"
    )
    return beside


def draw_comparison(comparison: GroupComparison) -> list[CaptionedFigure]:
    """Draw the groups' lines on the same axes: the accuracies, their differences, then form and length of the answers."""
    by_measure = [[_panel(comparison, env, measure) for env in comparison.envs] for measure in DRAWN]
    accuracy, *form = by_measure
    note = f"Mean over the runs of a group; bars are from the lowest to the highest. {LEGEND}"
    figures = [("Accuracy against tokens spent", note, accuracy, X_LABEL, False)]
    first, *others = (group.name for group in comparison.groups)
    if others:
        paired = (
            f"Accuracy less that of {first} at the same budget, paired by task; the band is its 95 % interval over tasks, not "
            f"over seeds. {LEGEND}"
        )
        differences = [_difference_panel(comparison, env) for env in comparison.envs]
        figures.append((f"Difference to {first}", paired, differences, f"tokens spent by {first}", True))
    figures.append(
        ("Form and length of the answers", note, [panel for panels in form for panel in panels], X_LABEL, False)
    )
    with matplotlib.rc_context(STYLE):
        return [
            CaptionedFigure(
                title=title, note=said, svg=inline_svg(draw(panels, x_label=x_label, bands=bands)), wide=True
            )
            for title, said, panels, x_label, bands in figures
        ]


def _panel(comparison: GroupComparison, env: str, measure: str) -> Panel:
    points = comparison.envs[env].points
    return Panel(
        title=env,
        measure=DRAWN[measure],
        ends=LENGTHS if measure == "answer_tokens_turn" else SHARES,
        lines={
            group.name: [
                Dot(mode=key.mode, x=found["tokens"].mean, value=shown.mean, low=shown.low, high=shown.high)
                for key, by_group in points.items()
                if (shown := (found := by_group[group.name])[measure]).runs
            ]
            for group in comparison.groups
        },
    )


def _difference_panel(comparison: GroupComparison, env: str) -> Panel:
    found, (first, *others) = comparison.envs[env], comparison.groups
    return Panel(
        title=env,
        measure="difference of accuracy",
        ends=(None, None),
        lines={
            group.name: [
                Dot(
                    mode=key.mode,
                    x=found.points[key][first.name]["tokens"].mean,
                    value=one.difference,
                    low=one.interval[0],
                    high=one.interval[1],
                )
                for key, by_group in found.differences.items()
                if (one := by_group[group.name]).tasks
            ]
            for group in others
        },
    )
