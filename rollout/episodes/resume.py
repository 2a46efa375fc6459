"""Groups in flight as data: another process, or a resumed run, continues them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from temper.rollout.codec import to_json
from temper.rollout.engines.protocol import Completion
from temper.rollout.trajectory import Group, Ticket, Times, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTurn:
    """A turn without the environment's response yet: its new ids, and the sampled tokens.

    `is_finished`: the turn is complete. Otherwise `completion.finished` has no meaning.
    """

    context_ids: tuple[int, ...]
    completion: Completion
    is_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialEpisode:
    """An episode in flight: its finished turns and its current turn.

    `seconds` and `times` are as in `Trajectory`, up to now.
    """

    turns: tuple[Turn, ...]
    turn: PartialTurn | None
    seconds: float
    times: Times

    @property
    def tokens(self) -> int:
        return sum(len(turn.sampled_ids) for turn in self.turns) + (
            len(self.turn.completion.token_ids) if self.turn else 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialGroup:
    """One attempt at a group in flight: finished and unfinished episodes by sample number.

    Other samples have not started. `before` is the result of earlier attempts.
    """

    ticket: Ticket
    attempt: int
    finished: Mapping[int, Trajectory] = field(default_factory=dict)
    unfinished: Mapping[int, PartialEpisode] = field(default_factory=dict)
    before: Group | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing would be lost with it."""
        return not (self.finished or self.unfinished or self.before)

    def with_ticket(self, ticket: Ticket) -> "PartialGroup":
        """Return it as an attempt at this ticket's task."""
        before = None if self.before is None else replace(self.before.with_task(ticket.task), ticket=ticket)
        finished = {sample: one.with_task(ticket.task) for sample, one in self.finished.items()}
        return replace(self, ticket=ticket, finished=finished, before=before)


class PartialGroups:
    def __init__(self, groups: Iterable[PartialGroup] = (), *, note: Callable[[str], None]) -> None:
        """`note` reports a group that can't resume."""
        self._groups = {group.ticket.number: group for group in groups}
        self._note = note

    @property
    def waiting(self) -> list[PartialGroup]:
        """The groups that are not taken yet."""
        return list(self._groups.values())

    def take(self, ticket: Ticket) -> PartialGroup | None:
        """Return the partial group of a ticket, once, or None to start anew."""
        group = self._groups.pop(ticket.number, None)
        if group is None:
            return None
        before, now = group.ticket.task.label, ticket.task.label
        if before != now:
            self._note(f"group {ticket.number} starts anew: its task changed from {before} to {now}")
            return None
        if group.ticket.sampling != ticket.sampling:
            self._note(f"group {ticket.number} starts anew: its sampling settings changed")
            return None
        return group.with_ticket(ticket)


def partial_lines(
    waiting: Iterable[PartialGroup], running: Iterable[PartialGroup], *, unfinished: Collection[int]
) -> str:
    """Return the checkpoint lines of unfinished tickets, running and not yet taken, without their tasks' data."""
    groups = {one.ticket.number: one for one in (*waiting, *running) if not one.empty}
    kept = (one for number, one in groups.items() if number in unfinished)
    bare = (one.with_ticket(replace(one.ticket, task=one.ticket.task.without_data)) for one in kept)
    return "".join(to_json(one) + "\n" for one in bare)


def describe_groups(groups: Collection[PartialGroup]) -> str:
    """Return a summary of the resumed groups."""
    episodes = [one for group in groups for one in group.unfinished.values()]
    tokens = sum(one.tokens for one in episodes)
    finished = sum(len(group.finished) for group in groups)
    return (
        f"{len(groups)} groups resume, with {finished} finished answers and {tokens} tokens of {len(episodes)} others"
    )
