"""The groups in flight that a checkpoint holds, a line each, and what becomes of them when a stage goes on."""

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any

from temper.rollout.episodes.begun import BegunGroup
from temper.rollout.episodes.begun_json import begun_from_json, begun_to_json
from temper.rollout.sampling import sampling_to_json
from temper.rollout.trajectory import Ticket

Row = dict[str, Any]
"""What `begun_to_json` writes of a group."""


class BegunGroups:
    """Groups that go on where they were, until they are handed out."""

    def __init__(self, rows: Iterable[Row] = (), *, note: Callable[[str], None]) -> None:
        """`note` tells people of a group that can't go on."""
        self._rows = {int(row["ticket"]): row for row in rows}
        self._note = note

    def copy(self) -> "BegunGroups":
        """Return what is there now, for a checkpoint: groups are handed out while it is written."""
        return BegunGroups(self._rows.values(), note=self._note)

    def take(self, ticket: Ticket) -> BegunGroup | None:
        """Return what there is of a ticket's group, once; None where it begins anew."""
        row = self._rows.pop(ticket.number, None)
        if row is None:
            return None
        if row["task"] != ticket.task.label:
            self._note(f"group {ticket.number} begins again: its task was {row['task']} and is {ticket.task.label} now")
            return None
        if row["sampling"] != sampling_to_json(ticket.sampling):
            self._note(f"group {ticket.number} begins again: its answers are sampled otherwise now")
            return None
        return begun_from_json(row, ticket)

    def lines(self, running: Iterable[BegunGroup], *, unfinished: Collection[int]) -> str:
        """Return what a checkpoint holds of unfinished tickets: those that run, and those that were not handed out yet."""
        rows = {ticket: row for ticket, row in self._rows.items() if ticket in unfinished}
        wanted = (one for one in running if one.ticket.number in unfinished and not one.empty)
        rows |= {one.ticket.number: begun_to_json(one) for one in wanted}
        return "".join(json.dumps(row) + "\n" for row in rows.values())


def in_words(rows: Collection[Row]) -> str:
    """Return a line for people on groups that go on."""
    episodes = [one for row in rows for one in row["unfinished"].values()]
    turns = [turn for one in episodes for turn in (*one["turns"], *([one["turn"]] if one["turn"] else []))]
    tokens = sum(len(turn["sampled_ids"]) for turn in turns)
    finished = sum(len(row["finished"]) for row in rows)
    return f"{len(rows)} groups go on where they were, with {finished} answers and {tokens} tokens of {len(episodes)} others"
