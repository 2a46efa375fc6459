"""Calls of one function with typed arguments: a timer's label, hours and minutes, from a request in plain words.

SmolLM2's chat template has no place for tools. So the system message describes the function, and the call is text.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import CALL_BLOCK, Call, ParsedTurn, parse_calls, remove_calls
from temper.envs.questions.structured_output import INTEGER, TEXT, close_schema
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score
from temper.rewards.tool_calls import match_calls

FUNCTION = "set_timer"
SCHEMAS = {FUNCTION: close_schema({"label": TEXT, "hours": INTEGER, "minutes": INTEGER})}
SYSTEM = (
    f"You can call {FUNCTION}(label: string, hours: integer, minutes: integer). The label is one word of the request. "
    "Reply with one call only, as "
    '<tool_call>{"name": FUNCTION, "arguments": {"ARGUMENT": VALUE}}</tool_call>'
)
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
    yield "no tags", [CALL_BLOCK.sub(r"\1", right)]
    yield "two calls", [right * 2]
    yield "empty", [""]


class Timers(TaskEnv):
    """Single turn: the answer must be one call with the right arguments, and no other text."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        calls = parsed.calls or parse_calls(parsed.answer)  # the model's family has no calls, so they are text
        made = [(call.name, call.arguments) for call in calls if isinstance(call, Call)]
        well_formed = len(made) == len(calls) == 1 and not remove_calls(parsed.answer)
        accepted = {FUNCTION: {name: [value] for name, value in task.spec.items()}}
        correct = well_formed and match_calls(made, [accepted], SCHEMAS, exact=True)
        return self.end(binary_score(correct, well_formed=well_formed, detail=f"made {str(made)[:80]}"))


ENVIRONMENT = EnvDefinition(
    id="timers",
    entry_point="temper.configs.recipes.smollm2.timers:Timers",
    generate=generate,
    levels=2,
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
)
