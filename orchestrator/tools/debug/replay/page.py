"""A replay for people at a terminal."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from temper.learner.models.layer_types import TYPES
from temper.orchestrator.run.screen import print_text
from temper.orchestrator.tools.debug.replay.chain import Chain
from temper.orchestrator.tools.debug.replay.replay import Changed, Match, Replay, StepCompared
from temper.orchestrator.tools.debug.replay.tokens import TokensCompared
from temper.orchestrator.tools.debug.replay.weights import Moved

LAYERS_SHOWN = 12
LEFT_OUT_SHOWN = 4
MATCHES = {
    Match.SAME: "matches the record",
    Match.DIFFERS: "differs from the record",
    Match.NOTHING: "has no recorded tokens, metrics or checkpoint to compare with",
}


def print_replay(found: Replay, console: Console) -> None:
    """Print the steps that were trained again and the differences."""
    for name, (then, now) in found.packages.items():
        print_text(console, f"recorded with {name} {then}, replayed with {now}: last digits may differ")
    for one in found.compared:
        _print_step(one, console)
    _print_weights(found, console)
    if found.changed is not None:
        _print_changed(found.changed, console, found.chain)
    step = f"{found.chain.label}, trained again from step {found.chain.base},"
    print_text(console, f"{found.run}: {step} {MATCHES[found.match]}")


def print_replayable(found: dict[str, dict[int, Chain]], console: Console) -> None:
    """Print the steps that can be replayed, by stage and starting checkpoint."""
    for stage, chains in found.items():
        by_base: dict[int, list[int]] = {}
        for step, chain in chains.items():
            by_base.setdefault(chain.base, []).append(step)
        for base, steps in by_base.items():
            where = f"the checkpoint of step {base}" if base else "the beginning"
            print_text(console, f"{stage}: steps {min(steps)} to {max(steps)} from {where}")
    if not any(found.values()):
        print_text(console, "no step can be replayed: no batch is recorded (checkpoints.batches)")


def _print_step(one: StepCompared, console: Console) -> None:
    """Print how a step's tokens and metrics compare with its record."""
    if one.tokens is None:
        print_text(console, f"step {one.step}: its tokens are not recorded")
    else:
        _print_tokens(one.tokens, console, f"step {one.step}", ("recorded", "replayed"))
    if not one.metrics_compared:
        print_text(console, f"step {one.step}: its metrics are not recorded")
        return
    differ = f"{len(one.metrics)} differ" if one.metrics else "difference 0"
    print_text(console, f"step {one.step}: {one.metrics_compared} metrics, {differ}")
    _print_metrics(one.metrics, console, ("recorded", "replayed"))


def _print_tokens(found: TokensCompared, console: Console, head: str, names: tuple[str, str]) -> None:
    if not found.unequal:
        print_text(console, f"{head}: {found.tokens:,} tokens, difference 0 (log-probability, advantage, factor)")
        return
    largest = ", ".join(f"{name} {size:.3g}" for name, size in found.largest.items())
    print_text(console, f"{head}: {found.unequal:,} of {found.tokens:,} tokens differ; largest difference: {largest}")
    rows = []
    for one in found.worst:
        answer = f"{one.env} {_visible(one.key)} row {one.row}"
        text = f"{_visible(one.before)[-24:]}[{one.text!r}]"
        for measure, pair in one.measures.items():
            rows.append((answer, str(one.token), text, measure, *map(_value, pair), one.link or ""))
    _print_table(console, ("answer", "token", "text", "measure", *names, "in the viewer"), rows)


def _print_table(
    console: Console, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, title: str | None = None
) -> None:
    """Print a table if it has rows."""
    if not rows:
        return
    table = Table(box=None, padding=(0, 1), pad_edge=False, title=title, title_justify="left")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _visible(text: str) -> str:
    """Return text of a model or of a task with its control characters written out."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _value(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.9g}"


def _print_metrics(pairs: dict[str, tuple[float, float]], console: Console, names: tuple[str, str]) -> None:
    for name, (one, other) in pairs.items():
        print_text(console, f"  {name}: {names[0]} {one:.9g}, {names[1]} {other:.9g}")


def _print_weights(found: Replay, console: Console) -> None:
    """Print how the weights after the step compare with the run's checkpoint."""
    step, stored, after = found.chain.step, found.weights, found.next_checkpoint
    if stored is None:
        following = "" if after is None else f". --step {found.chain.stage}/{after} has one"
        print_text(console, f"the run has no checkpoint of step {step} to compare weights with{following}")
        return
    differ = f"{len(stored.unequal)} differ" if stored.unequal else "bit-identical to its checkpoint"
    print_text(console, f"weights and optimiser after step {step}: {stored.tensors} tensors, {differ}")
    rows = [
        (one.layer, one.type, one.name, f"{one.unequal:,} of {one.entries:,}", f"{one.largest:.3g}")
        for one in sorted(stored.unequal, key=lambda each: -each.largest)[:LAYERS_SHOWN]
    ]
    _print_table(console, ("layer", "type", "tensor", "entries that differ", "largest"), rows)


def _print_changed(changed: Changed, console: Console, chain: Chain) -> None:
    head = f"step {chain.step} with {' '.join(changed.sets)} against without"
    _print_tokens(changed.tokens, console, head, ("without", "with"))
    _print_metrics(changed.metrics, console, ("without", "with"))
    effects = changed.effects
    if effects.left_out:
        some = ", ".join(effects.left_out[:LEFT_OUT_SHOWN])
        print_text(console, f"not compared: {len(effects.left_out)} tensors that only one side has, such as {some}")
    for title, moved in (("change of the weights", effects.weights), ("gradient", effects.gradients)):
        order = [kind for kind in TYPES if kind in moved] + furthest_layers(moved)
        rows = [(name, f"{effects.entries[name]:,}" if name in TYPES else "", *_moved(moved[name])) for name in order]
        names = ("type", "entries", "norm without", "norm with", "difference", "relative", "cosine")
        _print_table(console, names, rows, title=title)
    if not effects.gradients:
        print_text(console, "gradients are shown if a step makes one adamw update and no replay skips it")


def furthest_layers(moved: Mapping[str, Moved]) -> list[str]:
    """Return the layers with the largest relative difference. Layers without a norm come first."""

    def share(layer: str) -> float:
        one = moved[layer]
        return one.difference / one.one if one.one else math.inf if one.difference else 0.0

    return sorted((name for name in moved if name not in TYPES), key=share, reverse=True)[:LAYERS_SHOWN]


def _moved(one: Moved) -> list[str]:
    formats = {"recorded": ".4g", "changed": ".4g", "difference": ".4g", "relative": ".3g", "cosine": ".9f"}
    return ["-" if value is None else format(value, formats[name]) for name, value in one.as_json().items()]
