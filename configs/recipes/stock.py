"""Your own tools: the price of an order, which only a tool knows. Copy this example."""

import random
from collections.abc import Iterator

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn, call_message, turn_text
from temper.envs.task_env import MAX_CALLS, TaskEnv
from temper.envs.tools.calculator import calculate
from temper.envs.tools.text_tool import TextTool, answer_call, schemas
from temper.rewards.answers import equal_numbers, final_answer
from temper.rewards.score import binary_score

THINGS = ("book", "chair", "cup", "lamp", "map", "pen", "ring", "shoe", "table", "vase")


def tools(prices: dict[str, int]) -> dict[str, TextTool]:
    def price(item: str) -> str:
        if item not in prices:
            raise ValueError(f"there is no {item}")  # the model reads this
        return str(prices[item])

    return {
        "price": TextTool(argument="item", description="The price of one item.", run=price),
        "calculate": TextTool(argument="expression", description="The value of an expression.", run=calculate),
    }


def generate(rng: random.Random, level: int) -> Task:
    order = {item: rng.randint(2, 9) for item in rng.sample(THINGS, level + 1)}
    prices = {item: rng.randint(3, 99) for item in THINGS}
    question = f"What do {' and '.join(f'{count} x {item}' for item, count in order.items())} cost together?"
    spec = {"order": order, "prices": prices, "answer": str(sum(prices[item] * count for item, count in order.items()))}
    return Task(messages=({"role": "user", "content": question},), spec=spec, tools=schemas(tools({})))


def demonstrate(task: Task) -> list[Message]:
    order, prices = task.spec["order"], task.spec["prices"]
    asked = [call_message("price", {"item": item}) for item in order]
    told: list[Message] = [{"role": "tool", "content": str(prices[item])} for item in order]
    sum_of = "+".join(f"{count}*{prices[item]}" for item, count in order.items())
    return [
        {"role": "assistant", "reasoning_content": "I need the prices.", "content": "", "tool_calls": asked},
        *told,
        {"role": "assistant", "reasoning_content": sum_of, "content": f"\\boxed{{{task.spec['answer']}}}"},
    ]


def reference(task: Task) -> list[str]:
    return [turn_text(message, thinks=False) for message in demonstrate(task) if message["role"] == "assistant"]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield "another sum", [reference(task)[0], f"\\boxed{{{int(task.spec['answer']) + 1}}}"]
    yield "no answer", [reference(task)[0], ""]


class Stock(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        if not parsed.calls:
            found = final_answer(parsed.answer)
            correct = found is not None and equal_numbers(found, task.spec["answer"]) is True
            return self.end(binary_score(correct, well_formed=found is not None))
        if self.is_last(task):
            return self.truncate("before an answer")
        own = tools(task.spec["prices"])
        return self.continue_with(
            [{"role": "tool", "content": answer_call(call, own)} for call in parsed.calls[:MAX_CALLS]]
        )


ENVIRONMENT = EnvDefinition(
    id="stock",
    entry_point="temper.configs.recipes.stock:Stock",
    generate=generate,
    levels=len(THINGS) - 1,
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
    max_turns=6,
)
