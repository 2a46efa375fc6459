"""Groups in flight in a checkpoint: each is taken once, and saved again while it waits."""

from dataclasses import replace

from temper.envs.core.task import EnvRef, Task
from temper.rollout.codec import from_json
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.resume import (
    PartialEpisode,
    PartialGroup,
    PartialGroups,
    PartialTurn,
    describe_groups,
    partial_lines,
)
from temper.rollout.trajectory import NO_TIME, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "?"},), spec={})


def ticket_of(number: int, *, admitted: int = 1) -> Ticket:
    return Ticket(number=number, task=TASK, admitted=WeightVersion(step=admitted))


def partial(number: int) -> PartialGroup:
    said = Completion(token_ids=(7, 8), logprobs_T=(-0.5, -1.0), versions_T=(0, 1), finished=False)
    turn = PartialTurn(context_ids=(1, 2, 3), completion=said, is_finished=False)
    answer = Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=1.0)
    return PartialGroup(
        ticket=ticket_of(number),
        attempt=0,
        finished={1: answer},
        unfinished={0: PartialEpisode(turns=(), turn=turn, seconds=1.5, times=NO_TIME)},
    )


def read(lines: str) -> list[PartialGroup]:
    return [from_json(PartialGroup, line) for line in lines.splitlines()]


def test_what_is_in_flight_is_read_back_and_handed_out_once() -> None:
    notes: list[str] = []
    lines = partial_lines([], [partial(4), partial(5), partial(6)], unfinished={4, 5, 9})
    assert [group.ticket.number for group in read(lines)] == [4, 5]
    saved = [group for group in read(lines) if group.ticket.number == 5]
    assert describe_groups(saved) == "1 groups resume, with 1 finished answers and 2 tokens of 1 others"
    groups = PartialGroups(saved, note=notes.append)
    ticket = ticket_of(5, admitted=3)  # versions have changed
    assert groups.take(ticket_of(4)) is None
    assert groups.take(ticket) == replace(partial(5), ticket=ticket)
    assert groups.take(ticket) is None
    assert notes == []


def test_an_untaken_group_is_in_the_next_checkpoint() -> None:
    groups = PartialGroups(read(partial_lines([], [partial(4), partial(5)], unfinished={4, 5})), note=print)
    groups.take(ticket_of(4))
    again = read(partial_lines(groups.waiting, [partial(7)], unfinished={4, 5, 7}))
    assert [group.ticket.number for group in again] == [5, 7]


def test_a_group_with_another_task_starts_anew() -> None:
    notes: list[str] = []
    groups = PartialGroups(read(partial_lines([], [partial(4)], unfinished={4})), note=notes.append)
    assert groups.take(replace(ticket_of(4), task=replace(TASK, key="2"))) is None
    assert notes == ["group 4 starts anew: its task changed from math/1 to math/2"]
