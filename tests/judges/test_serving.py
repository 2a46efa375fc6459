"""The HTTP interfaces of `temper serve` with a tiny model of random weights, against the cases of llm-comply."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from judges.packages import COMPLIANCE, installed
from unit.rollout.serving.test_server import Served, served  # noqa: F401

FIELDS = (
    *("None is not ", "is a required property", "is not valid under any of the given schemas"),
    *(
        "unknown SSE event type: response.reasoning_text",
        "response.choices is empty",
        "response.output is missing or empty",
        "neither content nor tool_calls",
        "contained delta.content",
    ),
    *("'end_turn'", "status='completed'", "with text_delta", "terminal", "output_text"),
)
"""Errors in the fields of an answer: vLLM's server leaves some out or null, and random weights may end no thought or turn."""
FIELDS_CAUSE = (
    "Fields that vLLM's server leaves out or null, and answers of random weights that are empty or unfinished"
)
LEAST_PASSED = 1
CASES = {
    "image-input": "the model reads text only",
    "error-handling": "a request without `model` is answered by vLLM's server",
    "tool-calling": "random weights may end no thought, which a forced call follows",
}
"""Known causes of other errors, by the end of a case's name."""


@pytest.mark.parametrize(
    "interface",
    [
        pytest.param(name, marks=pytest.mark.judges(suite="llm-comply", run=f"`temper serve`: {path}"))
        for name, path in (
            ("open-responses", "Open Responses, `/v1/responses`"),
            ("openai-chat", "OpenAI, `/v1/chat/completions`"),
            ("anthropic", "Anthropic, `/v1/messages`"),
        )
    ],
)
def test_an_interface_answers_as_specified(served: Served, record_property: Any, interface: str) -> None:  # noqa: F811
    record_property("version", COMPLIANCE[0].split("==")[1])
    folder = installed(*COMPLIANCE)
    command = [sys.executable, "-m", "llm_comply.cli", "--base-url", str(served.client.base_url).rstrip("/")]
    command += ["--api-key", "none", "--model", served.model, "--format", interface, "--json"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    results = json.loads(ended.stdout)["results"]
    failed = {result["id"]: result["errors"] for result in results if result["status"] == "failed"}
    other = {
        case: [error for error in errors if not any(field in error for field in FIELDS)]
        for case, errors in failed.items()
        if not case.endswith(tuple(CASES))
    }
    causes = [cause for end, cause in CASES.items() if any(case.endswith(end) for case in failed)]
    fields = sum(not errors for errors in other.values())
    skipped = sum(result["status"] == "skipped" for result in results)
    record_property("passed", sum(result["status"] == "passed" for result in results))
    record_property("differs", f"{len(failed)}, not run: {skipped}")
    record_property(
        "why",
        f"{FIELDS_CAUSE} ({fields}). " + ". ".join(map(_sentence, causes)),
    )
    assert {case: errors for case, errors in other.items() if errors} == {}
    assert sum(result["status"] == "passed" for result in results) >= LEAST_PASSED


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
