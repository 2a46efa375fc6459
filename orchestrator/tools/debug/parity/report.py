"""What was found, as plain data and as tables for people."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from temper.orchestrator.tools.debug.parity.gap import Gap
from temper.orchestrator.tools.debug.parity.layers import DEPARTS, LayerFindings, in_words
from temper.orchestrator.tools.debug.parity.search import EXACT, GapDiagnosis, Tried
from temper.orchestrator.tools.debug.parity.setup import Setup

WORST = 5
"""Layers that are named one by one."""
TOLD = {"decoding": "", "prefill": " to prefill"}
"""What is said of the gap that is searched: that to decoding is meant where nothing is."""
WAYS = {
    "decoding": "trainer - decoding",
    "prefill": "trainer - prefill",
    "engine": "prefill - decoding",
}


def to_json(found: GapDiagnosis, setup: Setup, *, model: str) -> dict[str, Any]:
    """Return a diagnosis as plain JSON data; figures are in nats where they are not relative."""
    cause = found.cause
    return {
        "model": model,
        "gaps": asdict(found.gaps),
        "searched": found.way,
        "exact": found.nothing_to_explain,
        "cause": None if cause is None else _tried_json(cause, found),
        "tried": [_tried_json(one, found) for one in found.tried],
        "untried": [one.setting for one in found.untried],
        "layers": None if found.layers is None else asdict(found.layers),
        "cut_short": found.cut_short,
        "why_no_layers": found.why_no_layers,
        "settings": {
            "engine": asdict(setup.engine),
            "learner": {
                "bf16": setup.learner.bf16,
                "shared_prompts": setup.learner.shared_prompts,
                "router_replay": setup.learner.router_replay,
                "float32_head": setup.learner.float32_head,
                "wire_dtype": setup.learner.wire_dtype,
            },
            "sampling": asdict(setup.sampling),
        },
        "engines_started": found.starts,
        "seconds": round(found.seconds, 1),
    }


def _tried_json(tried: Tried, found: GapDiagnosis) -> dict[str, Any]:
    return {
        "name": tried.name,
        "setting": tried.setting,
        "side": sorted({cause.side for cause in tried.causes}),
        "form": tried.causes[0].form,
        "gap": None if tried.gap is None else asdict(tried.gap),
        "explained": None if tried.gap is None else explained(tried.gap, found),
        "fault": tried.fault,
    }


def explained(left: Gap, found: GapDiagnosis) -> float:
    """Return the share of the mean gap that is gone; negative where it grew."""
    return 1 - left.mean / found.gap.mean if found.gap.mean else 0.0


def tables(found: GapDiagnosis, *, model: str) -> RenderableType:
    """Return a diagnosis as tables."""
    parts: list[RenderableType] = [_gap_table(found, model)]
    if found.layers is not None:
        parts += [_type_table(found.layers), Text("\n".join(_layer_lines(found.layers)))]
    else:
        parts.append(Text(f"no layers: {found.why_no_layers}"))
    if found.tried:
        parts.append(_tried_table(found))
    parts.append(Text(verdict(found), style="bold"))
    cut = "; the time that --deadline gives was over before all was tried" if found.cut_short else ""
    parts.append(Text(f"{found.starts} engine{'' if found.starts == 1 else 's'} started, {found.seconds:.0f} s{cut}"))
    return Group(*parts)


def verdict(found: GapDiagnosis) -> str:
    """Return what it comes to, in one or two sentences."""
    gap, cause, of = found.gap, found.cause, TOLD[found.way]
    if found.nothing_to_explain:
        tokens = f"of {gap.tokens:,} tokens none differs by more than {found.largest:.1e} nats"
        return f"no gap: {tokens} (float32 stays below {EXACT:g})"
    if not found.tried:
        return f"a gap{of} of {gap.mean:.2e} nats in the mean; nothing was tried against it"
    if cause is None:
        nearest = found.nearest
        falls = 0.0 if nearest is None or nearest.gap is None else explained(nearest.gap, found)
        most = (
            ""
            if nearest is None or falls <= 0
            else f"; at the most {falls:.0%}, by {nearest.setting}, which chance may be"
        )
        more = f"; not tried: {', '.join(one.setting for one in found.untried)}" if found.untried else ""
        return f"no setting that was tried explains the gap{of} of {gap.mean:.2e} nats{most}{more}"
    assert cause.gap is not None
    share = f"{explained(cause.gap, found):.1%}"
    falls_to = f"falls from {gap.mean:.2e} to {cause.gap.mean:.2e} nats ({share})"
    return f"cause: {cause.name}\nset {cause.setting}: the gap{of} {falls_to}"


def _gap_table(found: GapDiagnosis, model: str) -> Table:
    title = Text(f"{model}: log-probabilities of the same tokens, differences in nats", style="table.title")
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("mean", "p99", "largest", "ratio outside 1/2..2", "k3", "tokens"):
        table.add_column(name, justify="right")
    for name, words in WAYS.items():
        gap: Gap = getattr(found.gaps, name)
        figures = (f"{gap.mean:.2e}", f"{gap.p99:.2e}", f"{gap.largest:.2e}", f"{gap.outside:.2%}", f"{gap.k3:.1e}")
        table.add_row(words, *figures, str(gap.tokens))
    return table


def _type_table(layers: LayerFindings) -> Table:
    ways = list(layers.points[0].added)
    table = Table(title="what each type of layer adds", title_justify="left")
    table.add_column("type")
    table.add_column("layers", justify="right")
    for way in ways:
        table.add_column(f"{way}: error of one", justify="right")
        table.add_column("nats by all", justify="right")
    for kind in layers.types:
        cells = []
        for way in ways:
            added = kind.added.get(way)
            cells += (
                ["", ""]
                if added is None
                else ["" if added.error is None else f"{added.error:.1e}", f"{added.nats:.1e}"]
            )
        table.add_row(kind.name, str(kind.layers), *cells)
    return table


def _layer_lines(layers: LayerFindings) -> Iterator[str]:
    kinds = {point.name: point.type for point in layers.points}
    for way, name in layers.departs.items():
        errors = {point.name: point.errors[way] for point in layers.points}
        last = layers.points[-1]
        if name is None:
            yield f"{way}: hidden states agree to the last layer, where they differ by {errors[last.name]:.1e}"
            continue
        yield (
            f"{way}: hidden states depart first behind {in_words(name, kinds)}, by {errors[name]:.1e}; "
            f"behind the last layer by {errors[last.name]:.1e}"
        )
        most = sorted(layers.points, key=lambda point: -point.added[way])[:WORST]
        added = [f"{in_words(point, kinds)} {point.added[way]:.1e}" for point in most if point.added[way] > DEPARTS]
        if added:
            yield f"  most is added by {', '.join(added)}"


def _tried_table(found: GapDiagnosis) -> Table:
    table = Table(title="one setting changed at a time", title_justify="left")
    for name in ("setting", "what it stands for", "gap left", "explains"):
        table.add_column(name, justify="right" if name in ("gap left", "explains") else "left", overflow="fold")
    rows = sorted(found.tried, key=lambda one: float("inf") if one.gap is None else one.gap.mean)
    for one in rows:
        if one.gap is None:
            table.add_row(Text(one.setting), Text(f"{one.name}: could not be tried: {one.fault}"), "", "")
            continue
        table.add_row(
            Text(one.setting), Text(one.name), f"{one.gap.mean:.2e}", f"{round(100 * explained(one.gap, found))} %"
        )
    for cause in found.untried:
        table.add_row(Text(cause.setting), Text(f"{cause.name}: not tried"), "", "")
    return table
