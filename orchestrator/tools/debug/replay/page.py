"""What a replay has found, for people at a terminal."""

import math
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table

from temper.learner.models.layer_types import TYPES
from temper.orchestrator.tools.debug.replay.chain import Chain
from temper.orchestrator.tools.debug.replay.replay import Changed, Replay, StepCompared, Verdict
from temper.orchestrator.tools.debug.replay.tokens import OneToken, TokensCompared
from temper.orchestrator.tools.debug.replay.weights import Effects, Moved, Stored

LAYERS_SHOWN = 12
LEFT_OUT_SHOWN = 4
VERDICTS = {
    Verdict.SAME: "is what the run recorded",
    Verdict.DIFFERS: "differs from what the run recorded",
    Verdict.NOTHING: "has nothing recorded to compare with: none of its tokens or metrics, and no checkpoint of it",
}


def print_replay(found: Replay, console: Console) -> None:
    """Print what was trained again and what differs."""
    chain = found.chain
    for name, (then, now) in found.packages.items():
        say(console, f"recorded with {name} {then}, and here is {now}: last digits may differ")
    for one in found.compared:
        _print_step(one, console)
    _print_weights(found, console)
    if found.changed is not None:
        _print_changed(found.changed, console, chain)
    say(console, f"{found.run}: {chain.label}, trained again from step {chain.base}, {VERDICTS[found.verdict]}")


def _print_step(one: StepCompared, console: Console) -> None:
    """Print how a step's tokens and metrics compare with its record."""
    if one.tokens is None:
        say(console, f"step {one.step}: the run recorded nothing of its tokens")
    elif not one.tokens.unequal:
        tokens = _count(one.tokens.tokens, "token")
        say(console, f"step {one.step}: {tokens}, difference 0 (log-probability, advantage, factor)")
    else:
        _print_tokens(one.tokens, console, f"step {one.step} against the record", ("recorded", "replayed"))
    if not one.metrics_compared:
        say(console, f"step {one.step}: the run recorded no metrics of it")
        return
    differ = f"{len(one.metrics):,} differ" if one.metrics else "difference 0"
    say(console, f"step {one.step}: {_count(one.metrics_compared, 'metric')}, {differ}")
    _print_metrics(one.metrics, console, ("recorded", "replayed"))


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, soft_wrap=True)


def print_replayable(found: dict[str, dict[int, Chain]], console: Console) -> None:
    """Print which steps can be replayed, by stage and by where training begins again."""
    for stage, chains in found.items():
        by_base: dict[int, list[int]] = {}
        for step, chain in chains.items():
            by_base.setdefault(chain.base, []).append(step)
        for base, steps in by_base.items():
            where = f"the checkpoint of step {base}" if base else "the beginning"
            say(console, f"{stage}: {_ranges(steps)} from {where}")
    if not any(found.values()):
        say(console, "no step can be replayed: no batch is recorded (checkpoints.batches)")


def _ranges(steps: list[int]) -> str:
    first, last = min(steps), max(steps)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _print_tokens(found: TokensCompared, console: Console, head: str, names: tuple[str, str]) -> None:
    largest = ", ".join(f"{name} {size:.3g}" for name, size in found.largest.items())
    say(console, f"{head}: {found.unequal:,} of {_count(found.tokens, 'token')} differ; largest difference: {largest}")
    if not found.worst:
        return
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in ("answer", "token", "text", "measure", *names, "in the viewer"):
        table.add_column(name, overflow="fold")
    for one in found.worst:
        for place, (measure, pair) in enumerate(one.measures.items()):
            where = _where(one) if not place else ["", "", ""]
            table.add_row(*where, measure, *map(_value, pair), (one.link or "") if not place else "")
    console.print(table, markup=False)


def _where(one: OneToken) -> list[str]:
    return [
        f"{one.env} {_visible(one.key)} row {one.row}",
        str(one.token),
        f"{_visible(one.before)[-24:]}[{one.text!r}]",
    ]


def _visible(text: str) -> str:
    """Return text of a model or of a task with its control characters written out."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _value(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.9g}"


def _print_metrics(pairs: dict[str, tuple[float, float]], console: Console, names: tuple[str, str]) -> None:
    for name, (one, other) in pairs.items():
        say(console, f"  {name}: {names[0]} {one:.9g}, {names[1]} {other:.9g}")


def _print_weights(found: Replay, console: Console) -> None:
    """Print how the weights after the step compare with those of the run's checkpoint."""
    step, stored = found.chain.step, found.weights
    if stored is None:
        after = found.next_checkpoint
        where = (
            ""
            if after is None
            else f"; the next one is that of step {after}, so --step {found.chain.stage}/{after} compares them"
        )
        say(console, f"the run has no checkpoint of step {step} to compare weights with{where}")
    elif not stored.unequal:
        say(
            console,
            f"weights and optimiser after step {step}: all {stored.tensors} tensors are those of its checkpoint, bit for bit",
        )
    else:
        _print_unequal(stored, console, step)


def _print_unequal(stored: Stored, console: Console, step: int) -> None:
    say(
        console,
        f"weights and optimiser after step {step}: {len(stored.unequal)} of {stored.tensors} tensors are not as in it",
    )
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in ("layer", "type", "tensor", "entries that differ", "largest"):
        table.add_column(name, overflow="fold")
    for one in sorted(stored.unequal, key=lambda each: -each.largest)[:LAYERS_SHOWN]:
        table.add_row(one.layer, one.type, one.name, f"{one.unequal:,} of {one.entries:,}", f"{one.largest:.3g}")
    console.print(table, markup=False)


def _print_changed(changed: Changed, console: Console, chain: Chain) -> None:
    told = " ".join(changed.sets)
    _print_tokens(changed.tokens, console, f"step {chain.step} with {told} against without", ("without", "with"))
    _print_metrics(changed.metrics, console, ("without", "with"))
    if changed.effects.left_out:
        names = changed.effects.left_out
        more = f" and {len(names) - LEFT_OUT_SHOWN} more" if len(names) > LEFT_OUT_SHOWN else ""
        say(
            console,
            f"no change is told of what a replay or the model before the step does not have by its name: "
            f"{', '.join(names[:LEFT_OUT_SHOWN])}{more}",
        )
    _print_effects(changed.effects, console)
    if not changed.effects.gradients:
        say(console, "gradients are told where a step makes one update of adamw, and neither replay skips it")


def _print_effects(found: Effects, console: Console) -> None:
    for head, by_type, by_layer in (
        ("change of the weights", found.weights, found.weights_by_layer),
        ("gradient", found.gradients, found.gradients_by_layer),
    ):
        if by_type:
            table = Table(box=None, padding=(0, 1), pad_edge=False, title=head, title_justify="left")
            for name in ("type", "entries", "norm without", "norm with", "difference", "relative", "cosine"):
                table.add_column(name, justify="left" if name == "type" else "right")
            for kind in (one for one in TYPES if one in by_type):
                table.add_row(kind, f"{found.entries.get(kind, 0):,}", *_moved(by_type[kind]))
            for layer in furthest_layers(by_layer):
                table.add_row(layer, "", *_moved(by_layer[layer]))
            console.print(table, markup=False)


def furthest_layers(moved: Mapping[str, Moved]) -> list[str]:
    """Return the layers whose difference is the largest share of the norm without; first those that have none without."""

    def share(layer: str) -> float:
        one = moved[layer]
        return one.difference / one.one if one.one else math.inf if one.difference else 0.0

    return sorted(moved, key=share, reverse=True)[:LAYERS_SHOWN]


def _moved(one: Moved) -> Iterable[str]:
    values = one.as_json()
    cosine = values["cosine"]
    yield from (f"{values[name]:.4g}" for name in ("recorded", "changed", "difference"))
    yield "-" if values["relative"] is None else f"{values['relative']:.3g}"
    yield "-" if cosine is None else f"{cosine:.9f}"
