"""What a checkpoint holds of a buffer: its tickets by number, and the groups that are finished."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from temper.envs.core.task import Task
from temper.orchestrator.loop.mixture import Draw
from temper.orchestrator.loop.slots import Dropped, Slot, SlotState
from temper.orchestrator.loop.ticket_ledger import Totals
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.trajectory_json import group_from_json, group_to_json

Held = Literal["ready", "undecided", "dropped"]
"""Whether a finished group waits for a step, for the decision on earlier ones, or was dropped since the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTicket:
    """A ticket that is neither trained nor dropped: its number, of which its seeds derive, and what it is for."""

    number: int
    draw: Draw
    admitted: int
    """The version that was served when it was issued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A finished group that is still needed, and the draw by which its task is made again."""

    held: Held
    draw: Draw
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the tickets of a checkpoint go."""

    slots: list[Slot]
    """Those that have a slot at once, in order; the finished ones with their groups."""
    later: list[HeldTicket]
    """Those for which there are too few slots: they begin anew."""
    gone: list[HeldTicket]
    """Those whose tasks can't be made any more."""
    go_on: set[int]
    """The tickets that go on where they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """A buffer between two steps. `no_signal` and `failed` count what was dropped since the last step."""

    next_ticket: int
    totals: Totals
    tickets: tuple[HeldTicket, ...]
    no_signal: int = 0
    failed: int = 0
    groups: tuple[HeldGroup, ...] = ()

    @classmethod
    def of(
        cls, slots: Iterable[Slot], later: Iterable[HeldTicket], dropped: Dropped, *, next_ticket: int, totals: Totals
    ) -> "BufferState":
        """Return the state of a buffer with these untrained slots, then these tickets without one."""
        tickets, groups = [], []
        for slot in slots:
            tickets.append(HeldTicket(number=slot.number, draw=slot.draw, admitted=slot.admitted.step))
            if slot.group is not None:
                held: Held = "undecided" if slot.state is SlotState.GENERATING else "ready"
                groups.append(HeldGroup(held=held, draw=slot.draw, group=slot.group))
        groups += [
            HeldGroup(held="dropped", draw=draw, group=group)
            for draw, group in zip(dropped.draws, dropped.groups, strict=True)
        ]
        return cls(
            next_ticket=next_ticket,
            totals=totals,
            tickets=(*tickets, *later),
            no_signal=dropped.no_signal,
            failed=dropped.failed,
            groups=tuple(groups),
        )

    def places(
        self, *, slots: int, per_step: int, max_lag: int, was: WeightVersion, now: WeightVersion, envs: Collection[str]
    ) -> Places:
        """Return where the tickets go in a buffer of so many slots, in which nothing comes too late.

        A ticket that was so many versions behind at version `was` is so many behind `now`. As `per_step` are trained in a
        step, the one at place n has to wait n // `per_step` steps. Where settings have changed and one can't wait as long, it
        is begun anew, and so are all after it: a step takes the first by number, which have to be those that are due first.
        """
        finished = {one.group.ticket.number: one for one in self.groups if one.held != "dropped"}
        found = Places(slots=[], later=[], gone=[t for t in self.tickets if t.draw.env not in envs], go_on=set())
        late = False
        for place, ticket in enumerate(t for t in self.tickets if t.draw.env in envs):
            late = late or ticket.admitted - was.step + max_lag < place // per_step
            if place >= slots:
                found.later.append(ticket)
                continue
            admitted = now if late else WeightVersion(step=ticket.admitted - was.step + now.step)
            slot = Slot(number=ticket.number, draw=ticket.draw, admitted=admitted)
            found.slots.append(slot)
            if not late:
                found.go_on.add(ticket.number)
                if ticket.number in finished:
                    _fill(slot, finished[ticket.number])
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all but the groups as plain JSON data."""
        return {
            "next_ticket": self.next_ticket,
            "totals": asdict(self.totals),
            "tickets": [asdict(ticket) for ticket in self.tickets],
            "no_signal": self.no_signal,
            "failed": self.failed,
        }

    def group_lines(self) -> str:
        """Return the groups as lines of JSON."""
        lines = (
            {"held": one.held, "env": one.draw.env, "index": one.draw.index} | group_to_json(one.group)
            for one in self.groups
        )
        return "".join(json.dumps(line) + "\n" for line in lines)


def _fill(slot: Slot, held: HeldGroup) -> None:
    """Put a finished group into the slot of its ticket."""
    slot.ticket = replace(held.group.ticket, admitted=slot.admitted)
    slot.group = replace(held.group, ticket=slot.ticket)
    slot.state = SlotState.READY if held.held == "ready" else SlotState.GENERATING


def state_from_json(data: dict[str, Any], groups: Iterable[HeldGroup]) -> BufferState:
    """Return the state that `to_json` and `group_lines` wrote."""
    tickets = (HeldTicket(**ticket | {"draw": Draw(**ticket["draw"])}) for ticket in data["tickets"])
    return BufferState(
        next_ticket=data["next_ticket"],
        totals=Totals(**data["totals"]),
        tickets=tuple(tickets),
        no_signal=data["no_signal"],
        failed=data["failed"],
        groups=tuple(groups),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A line of saved groups whose task is not made again yet."""

    draw: Draw
    data: dict[str, Any]

    def with_task(self, task: Task) -> HeldGroup:
        """Return the group as answers to its task."""
        return HeldGroup(held=self.data["held"], draw=self.draw, group=group_from_json(self.data, task))


def saved_groups(lines: str) -> list[SavedGroup]:
    """Return what `group_lines` wrote."""
    rows = (json.loads(line) for line in lines.splitlines())
    return [SavedGroup(draw=Draw(env=row["env"], index=row["index"]), data=row) for row in rows]
