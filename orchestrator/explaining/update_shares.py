"""Where the update of a recorded step came from: the share of each group in the sum of |advantage x factor| over tokens.

The gradient of a token's loss is its advantage times the factor by which the trainer corrects for the engine, times the
gradient of its log-probability: the first two are recorded. How the loss averages over answers of different length is not.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from urllib.parse import urlencode

from orchestrator.viewing.recorded_file import Lines, RecordedFile, Row

PROMPT_LENGTH = 60
ANSWER_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """What a group had in a step's update. `share` is of the sum over all groups, 0 to 1; `row` is its largest answer.

    `towards` is the part of the group's own sum that made what was sampled likelier, `said` the text of that answer.
    """

    ticket: int
    env: str
    key: str
    share: float
    towards: float
    rewards: tuple[float, ...]
    row: int
    said: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """The groups of a recorded step, the largest share first, and how many there are."""

    step: int
    label: str
    groups: tuple[GroupShare, ...]
    of: int


def shares_of(file: RecordedFile, *, most: int) -> StepShares:
    """Return the `most` groups of a step's file with the largest shares; none where it has no record of training."""
    totals: defaultdict[int, float] = defaultdict(float)
    towards: defaultdict[int, float] = defaultdict(float)
    strongest: dict[int, tuple[float, int, Row]] = {}
    rewards: dict[int, list[float]] = {}
    for number, row in enumerate(Lines(file.path).rows()):
        ticket, (total, positive) = row["ticket"], update_sum_of(row.get("training"))
        totals[ticket] += total
        towards[ticket] += positive
        if row["reward"] is not None:
            rewards.setdefault(ticket, []).append(float(row["reward"]))
        if ticket not in strongest or total > strongest[ticket][0]:
            strongest[ticket] = total, number, row
    whole = sum(totals.values())
    groups = [
        _share(file, ticket, total / whole, towards[ticket] / total, rewards.get(ticket, []), strongest[ticket])
        for ticket, total in sorted(totals.items(), key=lambda one: -one[1])[:most]
        if total > 0
    ]
    step = int(file.label.rpartition("/")[2])
    return StepShares(step=step, label=file.label, groups=tuple(groups), of=sum(total > 0 for total in totals.values()))


def update_sum_of(training: dict[str, Any] | None) -> tuple[float, float]:
    """Return the sum of |advantage x factor| over the tokens of an answer, and the part of it with a positive advantage."""
    if training is None or "untrained" in training:
        return 0.0, 0.0
    count = len(training["logprobs"])
    products = [
        a * f for a, f in zip(_each(training["advantage"], count), _each(training["factor"], count), strict=True)
    ]
    return sum(map(abs, products)), sum(product for product in products if product > 0)


def _each(value: float | list[float | None] | None, count: int) -> Iterable[float]:
    values = value if isinstance(value, list) else [value] * count
    return [0.0 if one is None else float(one) for one in values]


def _share(
    file: RecordedFile,
    ticket: int,
    share: float,
    towards: float,
    rewards: list[float],
    strongest: tuple[float, int, Row],
) -> GroupShare:
    _, number, row = strongest
    return GroupShare(
        ticket=ticket,
        env=row["env"],
        key=row["key"],
        share=share,
        towards=towards,
        rewards=tuple(rewards),
        row=number,
        said=_said(row),
        link=place_in_viewer(file.name, number),
    )


def _said(row: Row) -> str:
    text = " ".join(turn["text"] for turn in row["turns"])
    return " ".join(text.split())[:ANSWER_LENGTH]


def place_in_viewer(name: str, row: int) -> str:
    """Return what stands behind the address of `temper view` for an answer, coloured by what taught it."""
    return "#" + urlencode({"file": name, "row": row, "colour": "advantage"})


def mean_reward(group: GroupShare) -> float | None:
    """Return the mean reward of a group; None where none of its answers has one."""
    return fmean(group.rewards) if group.rewards else None
