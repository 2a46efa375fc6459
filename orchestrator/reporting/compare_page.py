"""The page of a comparison, and its JSON."""

from pathlib import Path

import matplotlib

from envs.core.thinking_mode import Mode
from orchestrator.reporting.budget_figures import LEGEND, Dot, Panel, draw
from orchestrator.reporting.compare import GroupComparison, PointKey, Spread
from orchestrator.reporting.figures import STYLE, CaptionedFigure, inline_svg
from orchestrator.reporting.report import render
from orchestrator.run.folder import write_json

TEMPLATE = "compare.html.jinja"
DRAWN = {
    "accuracy": "accuracy",
    "well_formed": "well-formed share",
    "answer_tokens_turn": "answer tokens of a turn",
}
"""The measures that are drawn, and what stands at their axes."""
LENGTHS = ("answer_tokens_turn",)
"""Those that are no shares."""


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
    """Draw the groups' lines on the same axes: first the accuracies, then form and length of the answers."""
    keys = [key for found in comparison.envs.values() for key in found.points]
    by_share = any(key.share is not None for key in keys)
    x_label = "budget, share of the median free thought" if by_share else "budget, tokens"
    panels = [_panel(comparison, env, measure, by_share=by_share) for measure in DRAWN for env in comparison.envs]
    count = len(comparison.envs)
    note = f"Mean over the runs of a group; the band is from the lowest to the highest. {LEGEND}"
    with matplotlib.rc_context(STYLE):
        accuracy = inline_svg(draw(panels[:count], x_label=x_label, bands=True))
        form = inline_svg(draw(panels[count:], x_label=x_label, bands=True))
    return [
        CaptionedFigure(title="Accuracy against thinking budget", note=note, svg=accuracy, wide=True),
        CaptionedFigure(title="Form and length of the answers", note=note, svg=form, wide=True),
    ]


def _panel(comparison: GroupComparison, env: str, measure: str, *, by_share: bool) -> Panel:
    points = comparison.envs[env].points
    shown = [key for key in points if key.mode is not Mode.BUDGET or (key.share is not None) == by_share]
    return Panel(
        title=env,
        measure=DRAWN[measure],
        is_share=measure not in LENGTHS,
        lines={
            group.name: [_dot(key, found) for key in shown if (found := points[key][group.name][measure]).runs]
            for group in comparison.groups
        },
    )


def _dot(key: PointKey, found: Spread) -> Dot:
    x = key.share if key.share is not None else float(key.budget or 0)
    return Dot(mode=key.mode, x=x, value=found.mean, low=found.low, high=found.high)
