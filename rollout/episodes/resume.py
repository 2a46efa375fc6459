"""Groups in flight as data: another process, or a resumed run, continues them."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from temper.rollout.engines.protocol import Completion
from temper.rollout.expert_choices import from_json, to_json
from temper.rollout.sampling import sampling_to_json
from temper.rollout.trajectory import Group, Ticket, Times, Trajectory, Turn
from temper.rollout.trajectory_json import (
    group_from_json,
    group_to_json,
    times_to_json,
    trajectory_from_json,
    trajectory_to_json,
    turn_from_json,
    turn_to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTurn:
    """A turn without the environment's response yet: its new ids, and the sampled tokens.

    `whole`: the turn is complete. Otherwise `completion.finished` has no meaning.
    """

    context_ids: tuple[int, ...]
    completion: Completion
    whole: bool


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


def partial_group_to_json(partial: PartialGroup) -> dict[str, Any]:
    """Return a group in flight as JSON data, with its ticket's number, task label and sampling."""
    return {
        "ticket": partial.ticket.number,
        "task": partial.ticket.task.label,
        "sampling": sampling_to_json(partial.ticket.sampling),
        "attempt": partial.attempt,
        "finished": {str(sample): trajectory_to_json(one) for sample, one in partial.finished.items()},
        "unfinished": {str(sample): _episode_to_json(one) for sample, one in partial.unfinished.items()},
        "before": None if partial.before is None else group_to_json(partial.before),
    }


def partial_group_from_json(data: dict[str, Any], ticket: Ticket) -> PartialGroup:
    """Return what `partial_group_to_json` wrote, for this ticket.

    Raises `ValueError` if its task or its sampling differs.
    """
    task = ticket.task
    if (data["ticket"], data["task"]) != (ticket.number, task.label):
        raise ValueError(
            f"the saved group has ticket {data['ticket']} and task {data['task']}, not {ticket.number} and {task.label}"
        )
    if data["sampling"] != (now := sampling_to_json(ticket.sampling)):
        raise ValueError(f"ticket {data['ticket']} was sampled with {data['sampling']}, not with {now}")
    return PartialGroup(
        ticket=ticket,
        attempt=data["attempt"],
        finished={int(sample): trajectory_from_json(one, task) for sample, one in data["finished"].items()},
        unfinished={int(sample): _episode_from_json(one) for sample, one in data["unfinished"].items()},
        before=None if data["before"] is None else replace(group_from_json(data["before"], task), ticket=ticket),
    )


def _episode_to_json(episode: PartialEpisode) -> dict[str, Any]:
    return {
        "turns": [turn_to_json(turn) for turn in episode.turns],
        "turn": None if episode.turn is None else _turn_to_json(episode.turn),
        "seconds": round(episode.seconds, 4),
        "times": times_to_json(episode.times),
    }


def _episode_from_json(data: dict[str, Any]) -> PartialEpisode:
    return PartialEpisode(
        turns=tuple(turn_from_json(turn) for turn in data["turns"]),
        turn=None if data["turn"] is None else _turn_from_json(data["turn"]),
        seconds=data["seconds"],
        times=Times(**data["times"]),
    )


def _turn_to_json(turn: PartialTurn) -> dict[str, Any]:
    completion = turn.completion
    return {
        "context_ids": list(turn.context_ids),
        "sampled_ids": list(completion.token_ids),
        "logprobs": [None if math.isnan(value) else value for value in completion.logprobs_T],
        "versions": list(completion.versions_T),
        "injected": list(completion.injected_T),
        "experts": to_json(completion.experts),
        "finished": completion.finished,
        "whole": turn.whole,
    }


def _turn_from_json(data: dict[str, Any]) -> PartialTurn:
    completion = Completion(
        token_ids=tuple(data["sampled_ids"]),
        logprobs_T=tuple(math.nan if value is None else value for value in data["logprobs"]),
        versions_T=tuple(data["versions"]),
        injected_T=tuple(data["injected"]),
        experts=from_json(data["experts"]),
        finished=data["finished"],
    )
    return PartialTurn(context_ids=tuple(data["context_ids"]), completion=completion, whole=data["whole"])


Row = dict[str, Any]
"""A group in flight as JSON data."""


class PartialGroups:
    def __init__(self, rows: Iterable[Row] = (), *, note: Callable[[str], None]) -> None:
        """`note` reports a group that can't resume."""
        self._rows = {int(row["ticket"]): row for row in rows}
        self._note = note

    @property
    def rows(self) -> list[Row]:
        """The rows that are not taken yet."""
        return list(self._rows.values())

    def take(self, ticket: Ticket) -> PartialGroup | None:
        """Return the partial group of a ticket, once, or None to start anew."""
        row = self._rows.pop(ticket.number, None)
        if row is None:
            return None
        if row["task"] != ticket.task.label:
            self._note(f"group {ticket.number} starts anew: its task changed from {row['task']} to {ticket.task.label}")
            return None
        if row["sampling"] != sampling_to_json(ticket.sampling):
            self._note(f"group {ticket.number} starts anew: its sampling settings changed")
            return None
        return partial_group_from_json(row, ticket)


def partial_lines(waiting: Iterable[Row], running: Iterable[PartialGroup], *, unfinished: Collection[int]) -> str:
    """Return the checkpoint lines of unfinished tickets, running and not yet taken."""
    rows = {int(row["ticket"]): row for row in waiting if int(row["ticket"]) in unfinished}
    wanted = (one for one in running if one.ticket.number in unfinished and not one.empty)
    rows |= {one.ticket.number: partial_group_to_json(one) for one in wanted}
    return "".join(json.dumps(row) + "\n" for row in rows.values())


def describe_rows(rows: Collection[Row]) -> str:
    """Return a summary of the resumed groups."""
    episodes = [one for row in rows for one in row["unfinished"].values()]
    turns = [turn for one in episodes for turn in (*one["turns"], *([one["turn"]] if one["turn"] else []))]
    tokens = sum(len(turn["sampled_ids"]) for turn in turns)
    finished = sum(len(row["finished"]) for row in rows)
    return f"{len(rows)} groups resume, with {finished} finished answers and {tokens} tokens of {len(episodes)} others"
