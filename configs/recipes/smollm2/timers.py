"""Calls of one function with typed arguments: a timer's label, hours and minutes, from a request in plain words.

SmolLM2's chat template has no place for tools. So the system message describes the function, and the call is text.
"""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.questions.structured_output import INTEGER, TEXT, closed
from temper.envs.task_env import TaskEnv
from temper.rewards.json_answers import NoJson, parse_json
from temper.rewards.score import binary_score
from temper.rewards.tool_calls import match_calls

FUNCTION = "set_timer"
SCHEMAS = {FUNCTION: closed({"label": TEXT, "hours": INTEGER, "minutes": INTEGER})}
SYSTEM = (
    f"You can call {FUNCTION}(label: string, hours: integer, minutes: integer). The label is one word of the request. "
    "Reply with one call only, as "
    '<tool_call>{"name": FUNCTION, "arguments": {"ARGUMENT": VALUE}}</tool_call>'
)
CALL = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)
LABELS = (
    "bath", "beans", "bread", "call", "class", "dinner", "eggs", "exam", "game", "lunch", "meeting", "nap", "noodles",
    "oven", "pasta", "pizza", "rice", "run", "show", "soup", "tea", "train", "walk", "wash", "yoga",
)  # fmt: skip
REQUESTS = (
    "Set a timer called {label} for {time}.",
    "Remind me of the {label} in {time}.",
    "Time the {label}: {time}.",
    "In {time} I need to know about the {label}.",
)


def generate(rng: random.Random, level: int) -> Task:
    """Level 1 has minutes, level 2 hours too."""
    label, hours, minutes = rng.choice(LABELS), rng.randint(0, level - 1) and rng.randint(1, 4), rng.randint(2, 59)
    spans = [f"{hours} hour{'s' * (hours > 1)}"] * (hours > 0) + [f"{minutes} minutes"]
    request = rng.choice(REQUESTS).format(label=label, time=" and ".join(spans))
    return Task(
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": request}),
        spec={"label": label, "hours": hours, "minutes": minutes},
    )


def call_text(label: Any, hours: Any, minutes: Any, name: str = FUNCTION) -> str:
    arguments = json.dumps({"name": name, "arguments": {"label": label, "hours": hours, "minutes": minutes}})
    return f"<tool_call>{arguments}</tool_call>"


def reference(task: Task) -> list[str]:
    return [call_text(**task.spec)]


def demonstrate(task: Task) -> list[Message]:
    return [{"role": "assistant", "content": reference(task)[0]}]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right, minutes = call_text(**task.spec), task.spec["minutes"]
    yield "other hours", [call_text(**task.spec | {"hours": task.spec["hours"] + 1})]
    yield "other minutes", [call_text(**task.spec | {"minutes": minutes + 1})]
    yield "minutes as text", [call_text(**task.spec | {"minutes": str(minutes)})]
    yield "another label", [call_text(**task.spec | {"label": "timer"})]
    yield "another function", [call_text(**task.spec, name="timer")]
    yield "no tags", [CALL.sub(r"\1", right)]
    yield "two calls", [right * 2]
    yield "empty", [""]


def read_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the arguments of the only call, None if there is another text."""
    found = CALL.fullmatch(text.strip())
    try:
        call = parse_json(found[1]) if found else None
    except NoJson:
        return None
    match call:
        case {"name": str(name), "arguments": dict(arguments), **others} if not others:
            return name, arguments
    return None


class Timers(TaskEnv):
    """Single turn: the answer must be one call with the right arguments."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        call = read_call(parsed.answer)
        accepted = {FUNCTION: {name: [value] for name, value in task.spec.items()}}
        correct = call is not None and match_calls([call], [accepted], SCHEMAS, exact=True)
        return self.end(binary_score(correct, well_formed=call is not None, detail=f"answered {parsed.answer[:80]}"))


ENVIRONMENT = EnvDefinition(
    id="timers",
    entry_point="temper.configs.recipes.smollm2.timers:Timers",
    generate=generate,
    levels=2,
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
)
