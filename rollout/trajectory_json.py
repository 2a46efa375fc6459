"""Trajectories as JSON lines: the files in a run's `trajectories/`."""

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.step_result import ToolSpan
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import up_to
from temper.rewards.score import Outcome, Score
from temper.rollout.expert_choices import from_json, to_json
from temper.rollout.sampling import Sampling, sampling_to_json
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import (
    Closed,
    Group,
    Resumption,
    Stop,
    ThinkingStats,
    Ticket,
    Times,
    Trajectory,
    Turn,
    TurnFault,
    WeightVersion,
)

Training = Mapping[str, Any]
NOT_TRAINED: Iterator[Training | None] = iter(())


def times_to_json(times: Times) -> dict[str, float]:
    return {name: round(seconds, 4) for name, seconds in asdict(times).items()}


def tool_span_to_json(span: ToolSpan) -> dict[str, Any]:
    """Return a tool call as JSON data, with times to the microsecond."""
    times = {"began_s": round(span.began_s, 6), "seconds": round(span.seconds, 6)}
    return {"name": span.name, "arguments": span.arguments} | times


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """Return a turn as JSON data. The log-probability of an injected token is null."""
    return {
        "text": turn.text,
        "reasoning": turn.reasoning,
        "answer": turn.answer,
        "observation": list(turn.observation),
        "context_ids": turn.context_ids.tolist(),
        "sampled_ids": turn.sampled_ids.tolist(),
        "logprobs": [None if math.isnan(value) else value for value in turn.logprobs_T.tolist()],
        "versions": turn.versions_T.tolist(),
        "injected": turn.injected_T.tolist(),
        "thinking_tokens": turn.thinking.tokens,
        "answer_tokens": turn.thinking.answer_tokens,
        "closed": turn.thinking.closed.value,
        "faults": [fault.value for fault in turn.faults],
        "truncated": turn.truncated,
        "experts": to_json(turn.experts),
        "times": times_to_json(turn.times),
        "tool_spans": [tool_span_to_json(span) for span in turn.tool_spans],
    }


def turn_from_json(data: dict[str, Any]) -> Turn:
    """Return the turn of `turn_to_json`. Files of earlier versions have no `tool_spans` or `truncated`."""
    return Turn(
        context_ids=as_ids(data["context_ids"]),
        sampled_ids=as_ids(data["sampled_ids"]),
        logprobs_T=as_floats([math.nan if value is None else value for value in data["logprobs"]]),
        versions_T=as_ids(data["versions"]),
        injected_T=as_marks(data["injected"]),
        text=data["text"],
        reasoning=data["reasoning"],
        answer=data["answer"],
        observation=tuple(data["observation"]),
        thinking=ThinkingStats(
            tokens=data["thinking_tokens"], answer_tokens=data["answer_tokens"], closed=Closed(data["closed"])
        ),
        faults=tuple(TurnFault(fault) for fault in data["faults"]),
        truncated=data.get("truncated", False),
        experts=from_json(data["experts"]),
        times=Times(**data["times"]),
        tool_spans=tuple(ToolSpan(**span) for span in data.get("tool_spans", ())),
    )


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    failure, judged = trajectory.failure, trajectory.score
    return {
        "env": trajectory.task.env.name,
        "key": trajectory.task.key,
        "thinking": {"mode": trajectory.task.thinking.mode.value, "budget": trajectory.task.thinking.budget},
        "messages": list(trajectory.task.messages),
        "reward": trajectory.reward,
        "outcome": None if judged.outcome is None else judged.outcome.value,
        "parts": judged.parts,
        "detail": judged.detail,
        "evidence": judged.evidence,
        "stop": trajectory.stop.value,
        "failure": None if failure is None else failure_to_json(failure),
        "seconds": round(trajectory.seconds, 4),
        "times": times_to_json(trajectory.times),
        "resumption": trajectory.resumption.value,
        "turns": [turn_to_json(turn) for turn in trajectory.turns],
        "forced_answers": [trajectory_to_json(one) for one in trajectory.forced_answers],
        "parents": list(trajectory.parents),
    }


def trajectory_from_json(data: dict[str, Any], task: Task) -> Trajectory:
    """Return the trajectory of `trajectory_to_json`, for this task. Older files have no `forced_answers` or `parents`."""
    failure = data["failure"]
    return Trajectory(
        task=task,
        turns=tuple(turn_from_json(turn) for turn in data["turns"]),
        stop=Stop(data["stop"]),
        reward=data["reward"],
        score=Score(
            outcome=None if data["outcome"] is None else Outcome(data["outcome"]),
            parts=data["parts"],
            detail=data["detail"],
            evidence=data["evidence"],
        ),
        failure=None if failure is None else failure_from_json(failure),
        seconds=data["seconds"],
        times=Times(**data["times"]),
        resumption=Resumption(data["resumption"]),
        forced_answers=tuple(
            trajectory_from_json(one, replace(task, thinking=up_to(one["thinking"]["budget"])))
            for one in data.get("forced_answers", ())
        ),
        parents=tuple(data.get("parents", ())),
    )


def failure_to_json(failure: Failure) -> dict[str, str]:
    return {"kind": failure.kind.value, "message": failure.message}


def failure_from_json(data: dict[str, str]) -> Failure:
    return Failure(kind=FailureKind(data["kind"]), message=data["message"])


def group_to_json(group: Group) -> dict[str, Any]:
    """Return a group as JSON data, with its ticket's number, version and sampling."""
    return _head(group) | {
        "trajectories": [trajectory_to_json(t) for t in group.trajectories],
        "failed": [trajectory_to_json(t) for t in group.failed],
        "retried": [failure_to_json(failure) for failure in group.retried],
    }


def group_from_json(data: dict[str, Any], task: Task) -> Group:
    """Return what `group_to_json` wrote, for this task, which the file does not hold."""
    return Group(
        ticket=Ticket(
            number=data["ticket"],
            task=task,
            admitted=WeightVersion(step=data["admitted"]),
            sampling=Sampling(**data["sampling"]),
        ),
        trajectories=tuple(trajectory_from_json(t, task) for t in data["trajectories"]),
        failed=tuple(trajectory_from_json(t, task) for t in data["failed"]),
        retried=tuple(failure_from_json(failure) for failure in data["retried"]),
    )


def group_lines(group: Group, training: Iterator[Training | None] = NOT_TRAINED) -> list[str]:
    """Return a JSON line for each trajectory of a group, failed ones included.

    Each scored trajectory takes the next value of `training`, or null.
    """
    head = _head(group)
    scored = [head | trajectory_to_json(t) | {"training": next(training, None)} for t in group.trajectories]
    return [json.dumps(row) for row in (*scored, *(head | trajectory_to_json(t) for t in group.failed))]


def _head(group: Group) -> dict[str, Any]:
    ticket = group.ticket
    sampling = sampling_to_json(ticket.sampling)
    return {"ticket": ticket.number, "admitted": ticket.admitted.step, "sampling": sampling}


def write_groups(
    path: Path, groups: Iterable[Group], *, leave: int = 0, training: Iterable[Training | None] = ()
) -> None:
    """Write the trajectories to a JSONL file. On an error no file is left at `path`.

    Raises `OSError` if less than `leave` bytes of disk stay free. `training` holds the learner's data for each scored
    trajectory, in order, as JSON data.
    """
    each = iter(training)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for group in groups:  # one group at a time: the JSON lines are much larger than the arrays
                file.writelines(line + "\n" for line in group_lines(group, each))
                file.flush()
                if leave and shutil.disk_usage(path.parent).free < leave:
                    raise OSError(errno.ENOSPC, f"fewer than the {leave} bytes reserved for a checkpoint would be free")
        os.replace(temporary, path)
    except OSError:
        for part in (temporary, path):  # an older file of that name has other groups
            part.unlink(missing_ok=True)
        raise
