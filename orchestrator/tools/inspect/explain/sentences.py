"""An explanation in plain sentences."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from temper.orchestrator.tools.inspect.explain.bends import FEWEST, FEWEST_STEPS
from temper.orchestrator.tools.inspect.explain.explanation import Explanation, MetricBend
from temper.orchestrator.tools.inspect.explain.update_shares import StepShares, mean_reward

SHOWN_BENDS = 15
REWARDS = ("/reward", "/correct")


def sentences(told: Explanation, *, viewer: str) -> Iterator[str]:
    """Yield the lines of an explanation. `viewer` is the address at which `temper view` serves the run."""
    yield f"{told.run}, {told.stage}: {told.steps} steps, {told.metrics} metrics looked at"
    if told.steps < FEWEST_STEPS:
        yield f"With fewer than {FEWEST_STEPS} steps nothing can be said of bends."
    if told.left_out:
        steps = f"{len(told.left_out)} {'step' if len(told.left_out) == 1 else 'steps'}"
        yield (
            f"{steps} from step {told.left_out[0]} on {'was' if len(told.left_out) == 1 else 'were'} skipped or not finite; "
            "values that are not finite are left out of all that follows."
        )
    yield ""
    yield from _diagnoses(told)
    yield from _bends(told)
    if told.shares is not None and told.at is not None:
        yield from _came_from(told.shares, run=told.run, at=told.at, viewer=viewer)
    elif told.at is not None:
        yield ""
        yield f"Of step {told.at} and those about it no groups can be told: no recorded step has an update."


def _diagnoses(told: Explanation) -> Iterator[str]:
    for place, one in enumerate(told.diagnoses, 1):
        since = "" if one.step is None else f", from step {one.step}"
        yield f"{place}. {one.name} ({one.score:.0%} of its signs{since}). {one.sentence}"
        yield from (f"   - {sign}" for sign in one.signs)
        yield f"   what to do: {one.remedy}"
        yield ""
    if not told.diagnoses and told.steps >= FEWEST_STEPS:
        if not told.bends:
            yield "What is left does not bend." if told.left_out else "Nothing bends."
        elif not told.bends_of_learning:
            yield "No metric of the model bends by itself."
        else:
            yield "No collapse that is known fits."
        yield f"What began in the last {FEWEST - 1} steps can't be told yet: a bend has {FEWEST} steps on each side."
        yield ""


def _bends(told: Explanation) -> Iterator[str]:
    own = [one for one in told.bends if one.kind == "learning"]
    if own:
        yield "What the model does bends, in this order:"
        fallen = next((one for one in own if one.metric.endswith(REWARDS) and _verb(one) == "falls"), None)
        yield from (_bend(one, fallen) for one in own[:SHOWN_BENDS])
        if len(own) > SHOWN_BENDS:
            yield f"  ... and {len(own) - SHOWN_BENDS} more (--json has all)"
    others = [one for one in told.bends if one.kind == "machine"]
    if others:
        names = ", ".join(f"{one.metric} (step {one.bend.step})" for one in others[:SHOWN_BENDS])
        yield f"Of the machine bend: {names}{' ...' if len(others) > SHOWN_BENDS else ''}"
    if own or others:
        yield (
            f"Of {1 / told.alarm:.0f} runs in which nothing bends at most one shows a bend of what the model does, if the "
            "noise of a step says nothing of the next one's; where it does, there are more."
        )


def _bend(one: MetricBend, fallen: MetricBend | None) -> str:
    bend = one.bend
    course = f"at {bend.at:.3g}, about {bend.before:.3g}" if bend.turns else f"{bend.before:.3g} to {bend.after:.3g}"
    size = f", {bend.size:.0f} times its noise" if bend.size < float("inf") else ""
    beside = f"; {' and '.join(one.beside)} changed there too" if one.beside else ""
    lead = "" if fallen is None else _lead(fallen.bend.step - bend.step, fallen.metric)
    return f"  step {bend.step:<5} {one.metric} {_verb(one)} ({course}{size}){lead}{beside}"


def _verb(one: MetricBend) -> str:
    return "turns" if one.bend.turns else "rises" if one.bend.after > one.bend.before else "falls"


def _lead(steps: int, metric: str) -> str:
    return f", {steps} {'step' if steps == 1 else 'steps'} before {metric} falls" if steps > 0 else ""


def _came_from(shares: StepShares, *, run: str, at: int, viewer: str) -> Iterator[str]:
    together = sum(group.share for group in shares.groups)
    where = f"step {shares.step}" + ("" if shares.step == at else f", the recorded step nearest to {at},")
    yield ""
    yield f"In {where} {together:.0%} of the update came from {len(shares.groups)} of {shares.of} groups:"
    for group in shares.groups:
        reward = mean_reward(group)
        likelier = f"{group.towards:.0%} of it to make likelier"
        worth = "no reward" if reward is None else f"mean reward {reward:.2f}"
        said = f": {group.said!r}" if group.said else ""
        yield f"  {group.share:4.0%}  {group.env} {group.key}, {worth}, {likelier}{said}"
        if group.link:
            yield f"        {viewer}{group.link}"
    if any(group.link for group in shares.groups):
        yield f"The links open while `temper view {run} --port {urlsplit(viewer).port}` runs."
    else:
        yield f"Of step {shares.step} the batch alone is recorded: `temper replay {run} --step {shares.label}` trains it again."
