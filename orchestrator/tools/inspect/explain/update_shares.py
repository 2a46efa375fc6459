"""The share of each group in the update of a recorded step: the sum of |advantage x factor| over its tokens.

The gradient of a token's loss is its advantage, times the correction factor for the engine, times the gradient of its logprob.
The first two are recorded. The averaging of the loss over answer lengths is not.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from temper.orchestrator.session.recording import read_batch
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines, RecordedFile
from temper.orchestrator.tools.inspect.viewer.table import update_sum, update_sum_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """A group's part in the update of a step. `share` is 0 to 1 over all groups.

    `towards` is the part of the group's sum that made its answers more likely. `link` opens its largest answer in the viewer.
    It is empty if only the batch is recorded.
    """

    ticket: int
    env: str
    key: str
    share: float
    towards: float
    rewards: tuple[float, ...]
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """The groups of a recorded step, the largest share first, and their total number."""

    step: int
    label: str
    groups: tuple[GroupShare, ...]
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An answer's part in the update: the sum over its tokens, and the part that made them more likely."""

    ticket: int
    env: str
    key: str
    reward: float | None
    total: float
    towards: float
    link: str = ""


def shares_of(file: RecordedFile, *, most: int) -> StepShares:
    """Return the `most` groups of a step's file with the largest shares. Empty without a record of training."""
    answers = []
    for number, row in enumerate(Lines(file.path).rows()):
        total, towards = update_sum_of(row.get("training"))
        link = "#" + urlencode({"file": file.name, "row": number, "colour": "advantage"})
        named = {name: row[name] for name in ("ticket", "env", "key", "reward")}
        answers.append(_Answer(**named, total=total, towards=towards, link=link))
    return _shares(answers, step=int(file.label.rpartition("/")[2]), label=file.label, most=most)


def shares_of_batch(path: Path, *, stage: str, step: int, most: int) -> StepShares:
    """Return the same from a recorded batch, which has no link to the viewer.

    Raise `ValueError` if it is damaged, `FileNotFoundError` if it was removed.
    """
    batch, answers = read_batch(path), []
    sums = {one.place: update_sum(one.advantages_T, one.factors_T) for one in batch.records}
    scored = [(group.ticket, answer.reward) for group in batch.groups for answer in group.trajectories]
    for place, (ticket, reward) in enumerate(scored):
        total, towards = sums.get(place, (0.0, 0.0))
        env, key = ticket.task.env.name, ticket.task.key
        answers.append(_Answer(ticket=ticket.number, env=env, key=key, reward=reward, total=total, towards=towards))
    return _shares(answers, step=step, label=f"{stage}/{step}", most=most)


def _shares(answers: Iterable[_Answer], *, step: int, label: str, most: int) -> StepShares:
    groups: defaultdict[int, list[_Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.ticket].append(answer)
    totals = {ticket: sum(answer.total for answer in own) for ticket, own in groups.items()}
    whole, largest = sum(totals.values()), sorted(totals, key=lambda ticket: -totals[ticket])[:most]
    shares = [_group_share(groups[ticket], whole=whole) for ticket in largest if totals[ticket] > 0]
    return StepShares(step=step, label=label, groups=tuple(shares), of=sum(total > 0 for total in totals.values()))


def _group_share(answers: Sequence[_Answer], *, whole: float) -> GroupShare:
    total, strongest = sum(answer.total for answer in answers), max(answers, key=lambda answer: answer.total)
    return GroupShare(
        ticket=strongest.ticket,
        env=strongest.env,
        key=strongest.key,
        share=total / whole,
        towards=sum(answer.towards for answer in answers) / total,
        rewards=tuple(float(answer.reward) for answer in answers if answer.reward is not None),
        link=strongest.link,
    )
