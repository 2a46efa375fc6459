"""Groups whose turns stay in the memory of other processes. The driver handles only rewards, totals and references.

A rollout worker splits its group by `store_turns`: the group with totals goes to the driver, the turns into shared memory. The
learner's ranks and the processes that write files read them by `read_groups`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.process import ResultLost, StoredResult
from temper.rollout.trajectory import Group, Stop, StoredTurns, Trajectory, Turn, TurnTotals

Payload = list[Sequence[Turn]]
"""The turns of the trajectories of a group and of their forced answers, by `StoredTurns.place`."""
TurnsOf = Callable[[Sequence[Turn]], Sequence[Turn]]


class GroupsLost(RuntimeError):
    """The stored turns of groups are gone. `tickets` are their numbers."""

    def __init__(self, tickets: Iterable[int]) -> None:
        self.tickets = frozenset(tickets)
        super().__init__(f"the turns of groups {sorted(self.tickets)} are lost: a machine failed")

    def __reduce__(self) -> tuple[type["GroupsLost"], tuple[frozenset[int]]]:
        return GroupsLost, (self.tickets,)


def store_turns(group: Group) -> tuple[Group, Payload]:
    """Return the group with stored turns, without their reference, and these turns."""
    payload: Payload = []

    def stored(turns: Sequence[Turn]) -> Sequence[Turn]:
        if not turns:
            return turns
        payload.append(turns)
        return StoredTurns(len(turns), len(payload) - 1, TurnTotals.of(turns))

    return _with_turns(group, stored), payload


def set_reference(group: Group, reference: StoredResult) -> Group:
    """Return a group of `store_turns` after setting the reference to its turns."""
    for turns in _stored(group):
        turns.reference = reference
    return group


async def read_groups(groups: Iterable[Group]) -> tuple[list[Group], set[int]]:
    """Return the groups with their turns, without those whose turns are lost, and the ticket numbers of these."""
    opened = await asyncio.gather(*map(_read_turns, groups := list(groups)), return_exceptions=True)
    found, lost = list[Group](), set[int]()
    for group, one in zip(groups, opened, strict=True):
        if isinstance(one, ResultLost):
            lost.add(group.ticket.number)
        elif isinstance(one, BaseException):
            raise one
        else:
            found.append(one)
    return found, lost


def read_all_groups(groups: Iterable[Group]) -> list[Group]:
    """Return the groups with their turns. Raise `GroupsLost` if any turns are lost."""
    found, lost = asyncio.run(read_groups(groups))
    if lost:
        raise GroupsLost(lost)
    return found


async def read_group(answering: Awaitable[Group]) -> Group:
    """Return an awaited group with its turns. If they are lost, all its answers fail."""
    group = await answering
    found, lost = await read_groups([group])
    if not lost:
        return found[0]
    failure = Failure(kind=FailureKind.WORKER, message=str(GroupsLost(lost)))
    failed = Trajectory(task=group.ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
    return replace(group, trajectories=(), failed=(failed,) * len((*group.trajectories, *group.failed)))


async def _read_turns(group: Group) -> Group:
    """Return a group with its turns, which may come from several workers. Raise `ResultLost`."""
    references = {turns.reference for turns in _stored(group) if turns.reference is not None}
    if not references:
        return group
    read = dict(zip(references, await asyncio.gather(*(one.read() for one in references)), strict=True))

    def opened(turns: Sequence[Turn]) -> Sequence[Turn]:
        if not isinstance(turns, StoredTurns):
            return turns
        assert turns.reference is not None
        return read[turns.reference][turns.place]

    return _with_turns(group, opened)


def _stored(group: Group) -> Iterator[StoredTurns]:
    for answer in (*group.trajectories, *group.failed):
        for one in (answer, *answer.forced_answers):
            if isinstance(one.turns, StoredTurns):
                yield one.turns


def _with_turns(group: Group, turns_of: TurnsOf) -> Group:
    trajectories, failed = (
        tuple(_answer_with_turns(answer, turns_of) for answer in some) for some in (group.trajectories, group.failed)
    )
    return replace(group, trajectories=trajectories, failed=failed)


def _answer_with_turns(answer: Trajectory, turns_of: TurnsOf) -> Trajectory:
    forced = tuple(_answer_with_turns(one, turns_of) for one in answer.forced_answers)
    return replace(answer, turns=turns_of(answer.turns), forced_answers=forced)
