"""Telephone numbers, to be looked up: tasks with tools, which the model calls before it answers.

Make it yours from top to bottom, and after each change run `temper envcheck --env temper.orchestrator.tools.new_env.tools`:

    tools         are what the model may call: each takes one text and gives one; ValueError is said to the model
    generate      makes a task: what the model is asked, its tools, and in `spec` what they and the judge need, which the
                  model never sees; an eighth of the questions is held out for evaluation, so let there be many
    demonstrate   calls and answers as an expert, with what the tools say: what the stage `sft` trains on
    gold          gives the turns of a right episode
    corruptions   names turns that must not be worth 1: those that a careless judge would accept
    Office.turn   answers calls, and judges the turn without any; `parsed.answer` is the turn without its thought
"""

import random
from collections.abc import Iterator

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn, call_message, turn_text
from temper.envs.task_env import TaskEnv, answer_each
from temper.envs.tools.text_tool import TextTool, answer_call, schemas
from temper.rewards.verdict import verdict

FIRST, LAST = ("Amy", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal"), ("Ash", "Bell", "Cole", "Dunn", "Elm", "Fry")
People = dict[str, dict[str, str]]


def tools(people: People) -> dict[str, TextTool]:
    def look_up(name: str) -> str:
        if name not in people:
            raise ValueError(f"nobody is called {name!r}")
        return f"boss {people[name]['boss']}, number {people[name]['number']}"

    return {"look_up": TextTool(argument="name", description="Says who is the boss of somebody.", run=look_up)}


def generate(rng: random.Random, level: int) -> Task:
    names = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], 2 + level)  # envs.my_env.level, from 1
    numbers = rng.sample(range(100, 1000), len(names))
    bosses = [*names[1:], names[0]]
    people: People = {
        name: {"boss": boss, "number": str(number)} for name, boss, number in zip(names, bosses, numbers, strict=True)
    }
    question = {"role": "user", "content": f"Which number has the boss of {names[0]}?"}
    spec = {"people": people, "asked": names[0], "answer": people[bosses[0]]["number"]}  # of plain JSON data
    return Task(messages=(question,), spec=spec, tools=schemas(tools({})))


def demonstrate(task: Task) -> list[Message]:
    look_up = tools(task.spec["people"])["look_up"].run
    asked = task.spec["asked"]
    boss = task.spec["people"][asked]["boss"]
    return [
        _calls(asked, thought=f"{asked}'s boss first"),
        {"role": "tool", "content": look_up(asked)},
        _calls(boss, thought=f"now {boss}"),
        {"role": "tool", "content": look_up(boss)},
        {"role": "assistant", "reasoning_content": "that is it", "content": task.spec["answer"]},
    ]


def gold(task: Task) -> list[str]:
    return [turn_text(said, thinks=False) for said in demonstrate(task) if said["role"] == "assistant"]


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    first, second, _ = gold(task)
    yield "the number of the one who was asked about", [first, task.spec["people"][task.spec["asked"]]["number"]]
    yield "no answer", [first, second, ""]
    yield "no end", [first, second, first]


def _calls(name: str, *, thought: str) -> Message:
    calls = [call_message("look_up", {"name": name})]
    return {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": calls}


class Office(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        if not parsed.calls:
            right = parsed.answer.strip() == task.spec["answer"]
            return self.end(verdict(right, detail=f"answered {parsed.answer[:40]!r}"))
        if self.is_last(task):
            return self.cut("before an answer")
        own = tools(task.spec["people"])
        results = answer_each(parsed.calls, lambda call: answer_call(call, own))  # one a call, in order
        return self.go_on([{"role": "tool", "content": result} for result in results])


ENVIRONMENT = EnvDefinition(
    id="my_env",
    entry_point="temper.orchestrator.tools.new_env.tools.env:Office",
    generate=generate,
    levels=len(FIRST) * len(LAST) - 2,
    demonstrate=demonstrate,
    gold=gold,
    corruptions=corruptions,
    max_turns=6,
)
