"""A group in flight as plain JSON data: a line of a checkpoint."""

import math
from dataclasses import replace
from typing import Any

from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.begun import BegunEpisode, BegunGroup, BegunTurn
from temper.rollout.expert_choices import from_json, to_json
from temper.rollout.sampling import sampling_to_json
from temper.rollout.trajectory import Ticket, Times
from temper.rollout.trajectory_json import (
    group_from_json,
    group_to_json,
    times_to_json,
    trajectory_from_json,
    trajectory_to_json,
    turn_from_json,
    turn_to_json,
)


def begun_to_json(begun: BegunGroup) -> dict[str, Any]:
    """Return a group in flight as plain JSON data, with number, name of the task and sampling of its ticket."""
    return {
        "ticket": begun.ticket.number,
        "task": begun.ticket.task.label,
        "sampling": sampling_to_json(begun.ticket.sampling),
        "attempt": begun.attempt,
        "finished": {str(sample): trajectory_to_json(one) for sample, one in begun.finished.items()},
        "unfinished": {str(sample): _episode_to_json(one) for sample, one in begun.unfinished.items()},
        "before": None if begun.before is None else group_to_json(begun.before),
    }


def begun_from_json(data: dict[str, Any], ticket: Ticket) -> BegunGroup:
    """Return what `begun_to_json` wrote for this ticket, whose task is not read back: it is made again.

    Raises `ValueError` where it is another task now, or sampled otherwise.
    """
    task = ticket.task
    if (data["ticket"], data["task"]) != (ticket.number, task.label):
        raise ValueError(
            f"ticket {data['ticket']} had the task {data['task']}, now ticket {ticket.number} has {task.label}"
        )
    if data["sampling"] != (now := sampling_to_json(ticket.sampling)):
        raise ValueError(f"ticket {data['ticket']} was sampled with {data['sampling']}, now with {now}")
    return BegunGroup(
        ticket=ticket,
        attempt=data["attempt"],
        finished={int(sample): trajectory_from_json(one, task) for sample, one in data["finished"].items()},
        unfinished={int(sample): _episode_from_json(one) for sample, one in data["unfinished"].items()},
        before=None if data["before"] is None else replace(group_from_json(data["before"], task), ticket=ticket),
    )


def _episode_to_json(episode: BegunEpisode) -> dict[str, Any]:
    return {
        "turns": [turn_to_json(turn) for turn in episode.turns],
        "turn": None if episode.turn is None else _turn_to_json(episode.turn),
        "seconds": round(episode.seconds, 4),
        "times": times_to_json(episode.times),
    }


def _episode_from_json(data: dict[str, Any]) -> BegunEpisode:
    return BegunEpisode(
        turns=tuple(turn_from_json(turn) for turn in data["turns"]),
        turn=None if data["turn"] is None else _turn_from_json(data["turn"]),
        seconds=data["seconds"],
        times=Times(**data["times"]),
    )


def _turn_to_json(turn: BegunTurn) -> dict[str, Any]:
    said = turn.said
    return {
        "context_ids": list(turn.context_ids),
        "sampled_ids": list(said.token_ids),
        "logprobs": [None if math.isnan(value) else value for value in said.logprobs_T],
        "versions": list(said.versions_T),
        "forced": list(said.forced_T),
        "experts": to_json(said.experts),
        "finished": said.finished,
        "whole": turn.whole,
    }


def _turn_from_json(data: dict[str, Any]) -> BegunTurn:
    said = Completion(
        token_ids=tuple(data["sampled_ids"]),
        logprobs_T=tuple(math.nan if value is None else value for value in data["logprobs"]),
        versions_T=tuple(data["versions"]),
        forced_T=tuple(data["forced"]),
        experts=from_json(data["experts"]),
        finished=data["finished"],
    )
    return BegunTurn(context_ids=tuple(data["context_ids"]), said=said, whole=data["whole"])
