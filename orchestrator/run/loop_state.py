"""The loop's part of a checkpoint, in three files: its writers and readers."""

import asyncio
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from temper.envs.core.errors import describe_error
from temper.orchestrator.loop.buffer import BufferState, HeldGroup
from temper.orchestrator.loop.length_penalty import EnvPenalty
from temper.orchestrator.loop.watches import CountedGroups
from temper.rollout.codec import from_data, from_json, to_data, to_json
from temper.rollout.episodes.resume import PartialGroup, partial_lines
from temper.rollout.stored_turns import read_groups

FORMAT = 4
"""Version of these files. A change that older programs would misread adds one."""
STATE_FILE = "loop.json"
"""Format, mixture, tickets and the number of event log rows."""
GROUPS_FILE = "groups.jsonl"
"""Finished groups that waited for a step, or were dropped since the last one."""
EPISODES_FILE = "episodes.jsonl"
"""Episodes of the groups in flight: finished ones, and the sampled part of the others."""


def held_group_lines(groups: Iterable[HeldGroup]) -> str:
    """Return the lines of finished groups, without their tasks' data."""
    return "".join(to_json(replace(one, group=one.group.without_data)) + "\n" for one in groups)


def write_groups_of(
    directory: Path,
    groups: Sequence[HeldGroup],
    waiting: Sequence[PartialGroup],
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
class LoopState:
    """The loop's state without answers: `buffer` has no groups here."""

    buffer: BufferState
    mixture: dict[str, dict[str, Any]]
    failures: dict[str, CountedGroups]
    version: int
    event_rows: int
    penalties: dict[str, EnvPenalty] = field(default_factory=dict)

    def to_text(self) -> str:
        return json.dumps({"format": FORMAT} | to_data(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLoop:
    """The loop's part of a checkpoint: state, finished groups, and groups in flight. Their tasks have no data."""

    state: LoopState
    groups: list[HeldGroup]
    episodes: list[PartialGroup]


def read_state(checkpoint: Path) -> LoopState:
    """Read the state of a checkpoint. Raise `ValueError` with a remedy for another format or a damaged file."""
    with _text(checkpoint / STATE_FILE) as text:
        data: dict[str, Any] = dict(json.loads(text))
    if (found := data.get("format")) != FORMAT:
        raise ValueError(
            f"{checkpoint} cannot be resumed: its {STATE_FILE} has format {found}, and this version of Temper reads format "
            f"{FORMAT}; resume with the version that wrote it (`commits` in the run's manifest.json), or start another run "
            f"with model.path={checkpoint}"
        )
    with _text(checkpoint / STATE_FILE):
        return from_data(LoopState, data)


def read_loop(checkpoint: Path) -> SavedLoop:
    """Read the loop's part of a checkpoint. Raise as `read_state`."""
    state = read_state(checkpoint)
    with _text(checkpoint / GROUPS_FILE) as text:
        groups = [from_json(HeldGroup, line) for line in text.splitlines()]
    with _text(checkpoint / EPISODES_FILE) as text:
        episodes = [from_json(PartialGroup, line) for line in text.splitlines()]
    return SavedLoop(state=state, groups=groups, episodes=episodes)


@contextmanager
def _text(file: Path) -> Iterator[str]:
    """Yield the text of a file. Raise `ValueError` with name and remedy if it is missing or the block fails on it."""
    try:
        yield file.read_text(encoding="utf-8")
    except (FileNotFoundError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{file} is missing or damaged ({describe_error(error)}); remove {file.parent} to resume from the checkpoint "
            f"before it, or from the start of the stage"
        ) from error
