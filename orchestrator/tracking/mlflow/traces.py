"""Episodes as MLflow's traces. Their ids derive from run, file and line, so that sending one twice leaves one."""

import base64
import hashlib
import json
from typing import Any

from mlflow.entities import (
    AssessmentSource,
    AssessmentSourceType,
    Feedback,
    Span,
    TraceInfo,
    TraceLocation,
    TraceState,
)

from temper.orchestrator.tracking.mlflow.episodes import Episode, Part

MS = 1_000_000
SOURCE_RUN = "mlflow.sourceRun"
"""The entry of a trace that names the run it is of."""
VERIFIER = AssessmentSource(source_type=AssessmentSourceType.CODE, source_id="verifier")
ROOT = 1


def trace_of(episode: Episode, *, experiment: str, run: str, file: str) -> tuple[TraceInfo, list[Span]]:
    """Return an episode of a file of a run as a trace and its spans."""
    number = hashlib.blake2b(f"{run}/{file}/{episode.place}".encode(), digest_size=16).hexdigest()
    trace_id = f"tr-{number}"
    asked, sampled = episode.tokens
    usage = {"input_tokens": asked, "output_tokens": sampled, "total_tokens": asked + sampled}
    info = TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=episode.whole.began // MS,
        execution_duration=max(1, (episode.whole.ended - episode.whole.began) // MS),
        state=TraceState.OK if episode.failure is None else TraceState.ERROR,
        request_preview=episode.prompt,
        response_preview=episode.failure or episode.answer,
        trace_metadata={SOURCE_RUN: run, "mlflow.trace.tokenUsage": json.dumps(usage)},
        tags={"mlflow.traceName": episode.env, "env": episode.env, "file": file, "line": str(episode.place + 1)},
        assessments=[_assessment(trace_id, name, value, episode.why) for name, value in episode.scores.items()],
    )
    spans = [_span(episode.whole, number, ROOT, None, episode.failure)]
    spans += [_span(part, number, place, ROOT, None) for place, part in enumerate(episode.parts, ROOT + 1)]
    return info, spans


def _assessment(trace_id: str, name: str, value: float, why: str) -> Feedback:
    shown = bool(value) if name == "correct" else value
    return Feedback(name=name, value=shown, source=VERIFIER, rationale=why or None, trace_id=trace_id)


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
