"""Recorded answers as MLflow traces: an episode, its turns, its tool calls and its grading.

Rows of trajectories have durations but no clock, so an episode ends when its file was written. Ids derive from run, file and
line, so that a trace sent twice is stored once.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlflow.entities import (
    AssessmentSource,
    AssessmentSourceType,
    Feedback,
    Span,
    TraceInfo,
    TraceLocation,
    TraceState,
)

from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.tracking.evaluation_table import last_user_message
from temper.rewards.score import correctness

Row = dict[str, Any]
NS, MS = 1_000_000_000, 1_000_000
PREVIEW = 1000
"""Characters of prompt and answer in the list of traces."""
SOURCE_RUN = "mlflow.sourceRun"
"""Metadata key of a trace with its run."""
VERIFIER = AssessmentSource(source_type=AssessmentSourceType.CODE, source_id="verifier")
ROOT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An episode or a part of it, with times in nanoseconds since 1970. `facts` are further values by name."""

    name: str
    kind: Literal["AGENT", "CHAT_MODEL", "TOOL", "EVALUATOR"]
    began: int
    ended: int
    inputs: Any
    outputs: Any
    facts: dict[str, Any]


def sample_rows(path: Path, count: int) -> Iterator[tuple[int, Row]]:
    """Yield up to `count` rows of a trajectory file, evenly spread, each with its line number.

    A missing file or an incomplete line yields nothing, because it will be written again.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    wanted = min(count, len(lines))
    for line_number in sorted({number * len(lines) // wanted for number in range(wanted)}):
        try:
            yield line_number, json.loads(lines[line_number], parse_constant=lambda _: None)
        except json.JSONDecodeError:
            continue


def build_trace(
    row: Row, line_number: int, *, ended: float, experiment: str, run: str, file: str
) -> tuple[TraceInfo, list[Span]]:
    """Return the trace and spans of the answer in line `line_number` of a file written at `ended`, in seconds."""
    number = hashlib.blake2b(f"{run}/{file}/{line_number}".encode(), digest_size=16).hexdigest()
    whole, *parts = build_parts(row, ended=ended)
    failure = None if row["failure"] is None else blank_text(f"{row['failure']['kind']}: {row['failure']['message']}")
    prompt, sampled = (sum(len(turn[ids]) for turn in row["turns"]) for ids in ("context_ids", "sampled_ids"))
    usage = {"input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled}
    scores = {name: bool(value) if name == "correct" else value for name, value in _scores(row).items()}
    why = blank_text(row.get("detail", "")) or None
    info = TraceInfo(
        trace_id=f"tr-{number}",
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=whole.began // MS,
        execution_duration=max(1, (whole.ended - whole.began) // MS),
        state=TraceState.OK if failure is None else TraceState.ERROR,
        request_preview=last_user_message(row["messages"])[:PREVIEW],
        response_preview=failure or whole.outputs["answer"][:PREVIEW],
        trace_metadata={SOURCE_RUN: run, "mlflow.trace.tokenUsage": json.dumps(usage)},
        tags={"mlflow.traceName": row["env"], "env": row["env"], "file": file, "line": str(line_number + 1)},
        assessments=[
            Feedback(name=name, value=value, source=VERIFIER, rationale=why, trace_id=f"tr-{number}")
            for name, value in scores.items()
        ],
    )
    spans = [_span(whole, number, ROOT, None, failure)]
    return info, spans + [
        _span(part, number, line_number, ROOT, None) for line_number, part in enumerate(parts, ROOT + 1)
    ]


def build_parts(row: Row, *, ended: float) -> Iterator[Part]:
    """Yield the episode of a row, its turns, their calls and its grading.

    Time of an episode outside its turns, mostly its creation, is placed before them.
    """
    turns = row["turns"]
    answer = turns[-1]["answer"] if turns else ""
    end = round(ended * NS)
    began = end - round(row["seconds"] * NS)
    yield Part(
        name=row["env"],
        kind="AGENT",
        began=began,
        ended=end,
        inputs={"messages": row["messages"]},
        outputs={"answer": answer, **_scores(row)},
        facts={name: row[name] for name in ("key", "stop", "thinking", "ticket", "admitted")},
    )
    spent = sum(turn["times"][name] for turn in turns for name in ("queue_s", "generate_s", "step_s"))
    now = max(began, end - round(spent * NS))
    messages: list[dict[str, Any]] = list(row["messages"])
    for number, turn in enumerate(turns, 1):
        generated = now + round((turn["times"]["queue_s"] + turn["times"]["generate_s"]) * NS)
        stepped = generated + round(turn["times"]["step_s"] * NS)
        message = {"role": "assistant", "content": turn["answer"]}
        yield Part(
            name=f"turn {number}",
            kind="CHAT_MODEL",
            began=now,
            ended=generated,
            inputs={"messages": messages},
            outputs={"text": turn["text"], "choices": [{"message": message}]},
            facts={
                "sampled tokens": len(turn["sampled_ids"]),
                "thinking tokens": turn["thinking_tokens"],
                "end of thinking": turn["closed"],
                "faults": turn["faults"],
                "queue_s": turn["times"]["queue_s"],
            },
        )
        yield from _calls(turn, generated, stepped)
        messages = [*messages, message, *turn["observation"]]
        now = stepped
    graded = turns[-1]["times"]["step_s"] if turns else 0.0
    yield Part(
        name="grading",
        kind="EVALUATOR",
        began=max(began, now - round(graded * NS)),
        ended=end,
        inputs={"answer": answer},
        outputs={name: row[name] for name in ("reward", "outcome", "parts")} | {"detail": blank_text(row["detail"])},
        facts={"evidence": row["evidence"]},
    )


def _calls(turn: dict[str, Any], began: int, ended: int) -> Iterator[Part]:
    """Yield the tool calls of a turn, each with its observation.

    If the environment reports no single calls, there is one per observation, and they share the time of the step.
    """
    answers = [message for message in turn["observation"] if message.get("role") == "tool"]
    shared = {"seconds": (ended - began) / NS, "began_s": 0.0, "arguments": turn["answer"]}
    spans = turn.get("tool_spans") or [shared | {"name": message.get("name")} for message in answers]
    facts = {} if turn.get("tool_spans") else {"calls that shared this time": len(answers)}
    for number, span in enumerate(spans):
        start = began + round(span["began_s"] * NS)
        yield Part(
            name=str(span["name"] or f"tool call {number + 1}"),
            kind="TOOL",
            began=start,
            ended=start + round(span["seconds"] * NS),
            inputs=span["arguments"] if span["name"] else turn["answer"],
            outputs=answers[number].get("content") if number < len(answers) else None,
            facts=facts,
        )


def _scores(row: Row) -> dict[str, float]:
    if row["reward"] is None:
        return {}
    return {"reward": float(row["reward"]), "correct": float(correctness(row["parts"], row["reward"]) >= 1.0)}


def _span(part: Part, trace: str, number: int, parent: int | None, failure: str | None) -> Span:
    known: dict[str, Any] = {
        "mlflow.traceRequestId": f"tr-{trace}",
        "mlflow.spanType": part.kind,
        "mlflow.spanInputs": part.inputs,
        "mlflow.spanOutputs": part.outputs,
    }
    return Span.from_dict(
        {
            "trace_id": _encoded(trace),
            "span_id": _encoded(f"{number:016x}"),
            "parent_span_id": None if parent is None else _encoded(f"{parent:016x}"),
            "name": part.name,
            "start_time_unix_nano": part.began,
            "end_time_unix_nano": max(part.ended, part.began + 1),
            "status": {
                "code": "STATUS_CODE_OK" if failure is None else "STATUS_CODE_ERROR",
                "message": failure or "",
            },
            "events": [],
            "attributes": {name: json.dumps(value) for name, value in (known | part.facts).items()},
        }
    )


def _encoded(number: str) -> str:
    return base64.b64encode(bytes.fromhex(number)).decode()
