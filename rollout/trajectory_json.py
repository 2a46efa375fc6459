"""Trajectories as JSON lines for people and tools: the files in a run's `trajectories/`. Checkpoints use `codec`."""

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from temper.envs.core.step_result import ToolSpan
from temper.rollout.codec import to_data
from temper.rollout.sampling import sampling_to_json
from temper.rollout.trajectory import Group, Times, Trajectory, Turn

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
        "experts": to_data(turn.experts),
        "times": times_to_json(turn.times),
        "tool_spans": [tool_span_to_json(span) for span in turn.tool_spans],
    }


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    judged = trajectory.score
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
        "failure": to_data(trajectory.failure),
        "seconds": round(trajectory.seconds, 4),
        "times": times_to_json(trajectory.times),
        "resumption": trajectory.resumption.value,
        "turns": [turn_to_json(turn) for turn in trajectory.turns],
        "forced_answers": [trajectory_to_json(one) for one in trajectory.forced_answers],
        "parents": list(trajectory.parents),
    }


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
