"""The loop's part of a checkpoint, in three files: its writers and readers."""

import asyncio
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from temper.envs.core.errors import describe_error
from temper.envs.core.task import Task
from temper.orchestrator.loop.buffer import BufferState, HeldGroup, HeldTicket
from temper.orchestrator.loop.mixture import Draw
from temper.orchestrator.loop.ticket_log import Totals
from temper.rollout.episodes.resume import PartialGroup, Row, partial_lines
from temper.rollout.stored_turns import read_groups
from temper.rollout.trajectory_json import group_from_json, group_to_json

FORMAT = 2
"""Version of these files. A change that older programs would misread adds one."""
STATE_FILE = "loop.json"
"""Format, mixture, tickets and the number of event log rows."""
GROUPS_FILE = "groups.jsonl"
"""Finished groups that waited for a step, or were dropped since the last one."""
EPISODES_FILE = "episodes.jsonl"
"""Episodes of the groups in flight: finished ones, and the sampled part of the others."""


def buffer_to_json(state: BufferState) -> dict[str, Any]:
    """Return a buffer's state without the groups as plain JSON data."""
    return {
        "next_ticket": state.next_ticket,
        "totals": asdict(state.totals),
        "tickets": [asdict(ticket) for ticket in state.tickets],
        "zero_advantage": state.zero_advantage,
        "failed": state.failed,
    }


def buffer_from_json(data: dict[str, Any], groups: Iterable[HeldGroup]) -> BufferState:
    """Return the state from `buffer_to_json` and `held_group_lines`."""
    tickets = (HeldTicket(**ticket | {"draw": Draw(**ticket["draw"])}) for ticket in data["tickets"])
    return BufferState(
        next_ticket=data["next_ticket"],
        totals=Totals(**data["totals"]),
        tickets=tuple(tickets),
        zero_advantage=data["zero_advantage"],
        failed=data["failed"],
        groups=tuple(groups),
    )


def held_group_lines(groups: Iterable[HeldGroup]) -> str:
    lines = (
        {"held": one.held, "env": one.draw.env, "index": one.draw.index} | group_to_json(one.group) for one in groups
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_groups_of(
    directory: Path,
    groups: Sequence[HeldGroup],
    waiting: Sequence[Row],
    running: Sequence[PartialGroup],
    unfinished: Collection[int],
) -> set[int]:
    """Write the finished groups of a checkpoint and those in flight. Return the tickets of groups whose turns are lost.

    Lost groups are left out, so that a resumed run samples them again.
    """
    opened, lost = asyncio.run(read_groups(one.group for one in groups))
    found = {group.ticket.number: group for group in opened}
    held = (replace(one, group=found[one.group.ticket.number]) for one in groups if one.group.ticket.number in found)
    (directory / GROUPS_FILE).write_text(held_group_lines(held), encoding="utf-8")
    parts, lost_parts = asyncio.run(read_groups(one.before for one in running if one.before is not None))
    before = {group.ticket.number: group for group in parts}
    kept = (
        replace(one, before=before.get(one.ticket.number)) for one in running if one.ticket.number not in lost_parts
    )
    (directory / EPISODES_FILE).write_text(partial_lines(waiting, kept, unfinished=unfinished), encoding="utf-8")
    return lost | lost_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A line of saved groups before its task is recreated."""

    draw: Draw
    data: dict[str, Any]

    def with_task(self, task: Task) -> HeldGroup:
        return HeldGroup(held=self.data["held"], draw=self.draw, group=group_from_json(self.data, task))


def saved_groups(lines: str) -> list[SavedGroup]:
    rows = (json.loads(line) for line in lines.splitlines())
    return [SavedGroup(draw=Draw(env=row["env"], index=row["index"]), data=row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """The loop's state without answers. Buffer, mixture, failures and penalties are plain JSON data."""

    buffer: dict[str, Any]
    mixture: dict[str, Any]
    failures: dict[str, Any]
    version: int
    event_rows: int
    penalties: dict[str, Any] = field(default_factory=dict)

    def to_text(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLoop:
    """The loop's part of a checkpoint: state, finished groups, and rows of the groups in flight."""

    state: LoopState
    groups: list[SavedGroup]
    episodes: list[dict[str, Any]]


def read_state(checkpoint: Path) -> LoopState:
    """Read the state of a checkpoint. Raise `ValueError` with a remedy for another format or a damaged file."""
    with _text(checkpoint / STATE_FILE) as text:
        data: dict[str, Any] = dict(json.loads(text))
    if (found := data.pop("format", None)) != FORMAT:
        raise ValueError(
            f"{checkpoint} cannot be resumed: its {STATE_FILE} has format {found}, and this version of Temper reads format "
            f"{FORMAT}; resume with the version that wrote it, or start another run with model.path={checkpoint}"
        )
    with _text(checkpoint / STATE_FILE):
        return LoopState(**data)


def read_loop(checkpoint: Path) -> SavedLoop:
    """Read the loop's part of a checkpoint. Raise as `read_state`."""
    state = read_state(checkpoint)
    with _text(checkpoint / GROUPS_FILE) as text:
        groups = saved_groups(text)
    with _text(checkpoint / EPISODES_FILE) as text:
        episodes = [json.loads(line) for line in text.splitlines()]
    return SavedLoop(state=state, groups=groups, episodes=episodes)


@contextmanager
def _text(file: Path) -> Iterator[str]:
    """Yield the text of a file. Raise `ValueError` with name and remedy if it is missing or the block fails on it."""
    try:
        yield file.read_text(encoding="utf-8")
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is missing or damaged ({describe_error(error)}); remove {file.parent} to resume from the checkpoint "
            f"before it, or from the start of the stage"
        ) from error
