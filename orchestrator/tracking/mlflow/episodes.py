"""Recorded answers as traces: an episode, its turns, its tool calls and its grading, each with when it began and ended.

Pure: rows of `trajectories/` in, plain data out. Rows have durations and no clock: an episode ends when its file was written.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from temper.orchestrator.run.redaction import blanked
from temper.orchestrator.tracking.evaluation_table import asked
from temper.rewards.verdict import correctness

Row = dict[str, Any]
Kind = Literal["AGENT", "CHAT_MODEL", "TOOL", "EVALUATOR"]
"""What a part of an episode is, in MLflow's words."""
NS = 1_000_000_000
PREVIEW = 1000
"""Characters of prompt and answer that the list of traces shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an episode, with its times in nanoseconds since 1970. `facts` are further values by name."""

    name: str
    kind: Kind
    began: int
    ended: int
    inputs: Any
    outputs: Any
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An answer as a trace: `parts` are what happened within the `whole`, in order."""

    place: int
    """The number of its line, from 0."""
    env: str
    whole: Part
    parts: tuple[Part, ...]
    prompt: str
    answer: str
    failure: str | None
    """What broke outside the model; None where nothing did."""
    scores: dict[str, float]
    """Its reward and whether it was right; empty where it has none."""
    why: str
    """The verifier's line."""
    tokens: tuple[int, int]
    """Of prompt and observations, and those that were sampled."""


def sampled_rows(path: Path, count: int) -> Iterator[tuple[int, Row]]:
    """Yield up to `count` rows of a file of trajectories, evenly over it, each with the number of its line.

    A file that is gone, or a line that is none, yields nothing: it was cut off, and will be made again.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    wanted = min(count, len(lines))
    for place in sorted({number * len(lines) // wanted for number in range(wanted)}):
        try:
            yield place, json.loads(lines[place], parse_constant=lambda _: None)
        except json.JSONDecodeError:
            continue


def episode_of(row: Row, place: int, *, ended: float) -> Episode:
    """Return the trace of a recorded answer whose episode ended at a time, in seconds since 1970."""
    end = round(ended * NS)
    began = end - round(row["seconds"] * NS)
    turns = row["turns"]
    answer = turns[-1]["answer"] if turns else ""
    failure = row["failure"]
    score = {} if row["reward"] is None else {"reward": float(row["reward"]), "correct": _correct(row)}
    sent = sum(len(turn["context_ids"]) for turn in turns), sum(len(turn["sampled_ids"]) for turn in turns)
    facts = {name: row[name] for name in ("key", "stop", "thinking", "ticket", "admitted")}
    whole = Part(
        name=row["env"],
        kind="AGENT",
        began=began,
        ended=end,
        inputs={"messages": row["messages"]},
        outputs={"answer": answer, **score},
        facts=facts,
    )
    return Episode(
        place=place,
        env=row["env"],
        whole=whole,
        parts=tuple(_parts(row, began, end)),
        prompt=asked(row["messages"])[:PREVIEW],
        answer=answer[:PREVIEW],
        failure=None if failure is None else blanked(f"{failure['kind']}: {failure['message']}"),
        scores=score,
        why=blanked(row.get("detail", "")),
        tokens=sent,
    )


def _correct(row: Row) -> float:
    return float(correctness(row["parts"], row["reward"]) >= 1.0)


def _parts(row: Row, began: int, end: int) -> Iterator[Part]:
    """Yield turns, calls and grading. What an episode took beside its turns, its making above all, was before them."""
    turns = row["turns"]
    spent = sum(turn["times"][name] for turn in turns for name in ("queue_s", "generate_s", "step_s"))
    now = max(began, end - round(spent * NS))
    messages: list[dict[str, Any]] = list(row["messages"])
    for number, turn in enumerate(turns, 1):
        spoken = now + round((turn["times"]["queue_s"] + turn["times"]["generate_s"]) * NS)
        stepped = spoken + round(turn["times"]["step_s"] * NS)
        said = {"role": "assistant", "content": turn["answer"]}
        yield Part(
            name=f"turn {number}",
            kind="CHAT_MODEL",
            began=now,
            ended=spoken,
            inputs={"messages": messages},
            outputs={"text": turn["text"], "choices": [{"message": said}]},
            facts={
                "sampled tokens": len(turn["sampled_ids"]),
                "thought tokens": turn["thought_tokens"],
                "thought closed": turn["closed"],
                "faults": turn["faults"],
                "queue_s": turn["times"]["queue_s"],
            },
        )
        yield from _calls(turn, spoken, stepped)
        messages = [*messages, said, *turn["observation"]]
        now = stepped
    graded = turns[-1]["times"]["step_s"] if turns else 0.0
    yield Part(
        name="grading",
        kind="EVALUATOR",
        began=max(began, now - round(graded * NS)),
        ended=end,
        inputs={"answer": turns[-1]["answer"] if turns else ""},
        outputs={name: row[name] for name in ("reward", "outcome", "parts")} | {"detail": blanked(row["detail"])},
        facts={"evidence": row["evidence"]},
    )


def _calls(turn: dict[str, Any], began: int, ended: int) -> Iterator[Part]:
    """Yield the tool calls of a turn in their order, each with the observation that answers it.

    A turn whose environment tells no single calls has one for each observation: they share the time of its step.
    """
    told = [message for message in turn["observation"] if message.get("role") == "tool"]
    if spans := turn.get("tool_spans"):
        for number, span in enumerate(spans):
            start = began + round(span["began_s"] * NS)
            yield Part(
                name=span["name"] or f"tool call {number + 1}",
                kind="TOOL",
                began=start,
                ended=start + round(span["seconds"] * NS),
                inputs=span["arguments"] if span["name"] else turn["answer"],
                outputs=told[number].get("content") if number < len(told) else None,
                facts={},
            )
        return
    calls = called(turn["answer"])
    for number, message in enumerate(told):
        known = calls[number] if len(calls) == len(told) else {}
        yield Part(
            name=str(known.get("name") or message.get("name") or f"tool call {number + 1}"),
            kind="TOOL",
            began=began,
            ended=ended,
            inputs=known.get("arguments", known.get("parameters", turn["answer"])),
            outputs=message.get("content"),
            facts={"calls that shared this time": len(told)},
        )


def called(answer: str) -> list[dict[str, Any]]:
    """Return the calls that stand in an answer as JSON objects with a name, in order; other notations are not read."""
    found, at, decoder = [], answer.find("{"), json.JSONDecoder()
    while at >= 0:
        try:
            value, end = decoder.raw_decode(answer, at)
        except json.JSONDecodeError:
            end = at + 1
        else:
            if isinstance(value, dict) and isinstance(value.get("name"), str):
                found.append(value)
        at = answer.find("{", end)
    return found
