"""A comparison as plain data and as tables for people."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from temper.orchestrator.tools.debug.parity.answers import Setup
from temper.orchestrator.tools.debug.parity.comparison import EXACT, Comparison
from temper.orchestrator.tools.debug.parity.layers import DIVERGES, LayerFindings, describe_error

WORST = 5
"""Number of layers listed by name."""


def to_json(found: Comparison, setup: Setup, *, model: str) -> dict[str, Any]:
    """Return a comparison as plain JSON data. Values that are not relative are in nats."""
    learner = setup.learner
    names = ("bf16", "shared_prompts", "router_replay", "float32_head", "wire_dtype")
    return {
        "model": model,
        "exact": found.is_exact,
        "gaps": [asdict(row) for row in found.rows],
        "engine": asdict(found.engine),
        "layers": None if found.layers is None else asdict(found.layers),
        "why_no_layers": found.untraced_reason,
        "settings": {
            "engine": asdict(setup.engine),
            "learner": {name: getattr(learner, name) for name in names},
            "sampling": asdict(setup.sampling),
        },
        "seconds": round(found.seconds, 1),
    }


def tables(found: Comparison, *, model: str) -> RenderableType:
    """Return a comparison as tables."""
    parts: list[RenderableType] = [_diff_table(found, model)]
    if found.layers is not None:
        parts += [_type_table(found.layers), Text("\n".join(_layer_lines(found.layers)))]
    else:
        parts.append(Text(f"no layers: {found.untraced_reason}"))
    gap = found.configured.decoding
    summary = f"logprob diff: mean {gap.mean:.2e} nats, maximum {gap.largest:.2e}"
    remedy = f"float32 explains it (below {EXACT:g})" if found.is_exact else "docs/debugging.md lists settings to try"
    parts.append(Text(f"{summary}; {remedy}", style="bold"))
    return Group(*parts)


def _diff_table(found: Comparison, model: str) -> Table:
    title = Text(f"{model}: log-probabilities of the same tokens, differences in nats", style="table.title")
    table = Table(title=title, title_justify="left")
    for name in ("difference", "setting"):
        table.add_column(name)
    for name in ("mean", "p99", "largest", "ratio outside 1/2..2", "k3", "tokens"):
        table.add_column(name, justify="right")
    ways = [("prefill - decoding", "", found.engine)]
    for row in found.rows:
        ways += [
            ("trainer - decoding", row.setting, row.decoding),
            ("trainer - prefill", row.setting, row.prefill),
        ]
    for way, setting, gap in ways:
        figures = (f"{gap.mean:.2e}", f"{gap.p99:.2e}", f"{gap.largest:.2e}", f"{gap.outside:.2%}", f"{gap.k3:.1e}")
        table.add_row(way, Text(setting), *figures, str(gap.tokens))
    return table


def _type_table(layers: LayerFindings) -> Table:
    ways = list(layers.points[0].added)
    table = Table(title="error added by layer type", title_justify="left")
    table.add_column("type")
    table.add_column("layers", justify="right")
    for way in ways:
        table.add_column(f"{way}: error of one layer", justify="right")
        table.add_column("nats by all", justify="right")
    for kind in layers.types:
        cells: list[str] = []
        for added in map(kind.added.get, ways):
            cells.append("" if added is None or added.error is None else f"{added.error:.1e}")
            cells.append("" if added is None else f"{added.nats:.1e}")
        table.add_row(kind.name, str(kind.layers), *cells)
    return table


def _layer_lines(layers: LayerFindings) -> Iterator[str]:
    points = {point.name: point for point in layers.points}
    for way, name in layers.diverges_at.items():
        last = f"{layers.points[-1].errors[way]:.1e}"
        if name is None:
            yield f"{way}: hidden states match up to the last layer, and differ there by {last}"
            continue
        first = points[name]
        yield (
            f"{way}: hidden states diverge first after {describe_error(first)}, by {first.errors[way]:.1e}; "
            f"behind the last layer by {last}"
        )
        most = sorted(layers.points, key=lambda point: -point.added[way])[:WORST]
        added = [f"{describe_error(point)} {point.added[way]:.1e}" for point in most if point.added[way] > DIVERGES]
        if added:
            yield f"  most is added by {', '.join(added)}"
