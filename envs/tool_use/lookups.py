"""Generated tool-use tasks: numbers that only a look-up reveals, combined by a calculator.

Level 1 has keys of one letter, one or two look-ups, plus or minus. Level 2 has names as keys, up to three look-ups, and
products.
"""

import random
from collections.abc import Mapping
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import make_call_turn
from temper.envs.tools.calculator import calculate
from temper.envs.tools.text_tool import TextTool, schemas

# fmt: off
NAMES = (
    "amy", "ann", "ava", "ben", "bob", "cal", "dan", "dee", "don", "eli", "eva", "fay", "gus", "guy", "hal",
    "ian", "ida", "ivy", "jan", "jay", "jim", "joe", "kai", "kim", "lee", "leo", "lia", "liz", "lou", "mae",
    "max", "may", "meg", "mia", "ned", "nia", "pam", "pat", "ray", "rex", "rob", "ron", "roy", "sal", "sam",
    "sid", "sue", "ted", "tim", "tom", "una", "val", "vic", "wes", "zoe",
)
# fmt: on
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
MAX_VALUE = 99


def tools(database: Mapping[str, int]) -> dict[str, TextTool]:
    def get(key: str) -> str:
        if key not in database:
            raise ValueError("unknown key")
        return str(database[key])

    return {"get": TextTool(argument="key", run=get), "calc": TextTool(argument="expr", run=calculate)}


TOOLS = schemas(tools({}))


def generate(rng: random.Random, level: int) -> Task:
    names = rng.sample(LETTERS if level == 1 else NAMES, 4)
    database = {name: rng.randint(1, MAX_VALUE) for name in names}
    operands: list[str] = names[: rng.randint(1, 2 if level == 1 else 3)]
    if len(operands) == 1:
        operands.append(str(rng.randint(1, MAX_VALUE)))
    signs = [rng.choice("+-" if level == 1 else "+-*") for _ in operands[1:]]
    question = operands[0] + "".join(sign + operand for sign, operand in zip(signs, operands[1:], strict=True))
    values = [str(database.get(operand, operand)) for operand in operands]
    expression = values[0] + "".join(sign + value for sign, value in zip(signs, values[1:], strict=True))
    spec: dict[str, Any] = {
        "database": {name: database[name] for name in sorted(database)},
        "keys": [operand for operand in operands if operand in database],
        "expression": expression,
        "answer": calculate(expression),
    }
    messages = ({"role": "user", "content": f"{question}=?"},)
    return Task(messages=messages, spec=spec, tools=TOOLS)


def demonstrate(task: Task) -> list[Message]:
    spec = task.spec
    if "keys" not in spec:
        raise ValueError("a row of data has no demonstration; use a generated task")
    gets = [("get", {"key": key}) for key in spec["keys"]]
    return [
        make_call_turn(gets, reasoning="get " + " ".join(spec["keys"])),
        *({"role": "tool", "content": str(spec["database"][key])} for key in spec["keys"]),
        make_call_turn([("calc", {"expr": spec["expression"]})], reasoning=spec["expression"]),
        {"role": "tool", "content": spec["answer"]},
        {"role": "assistant", "reasoning_content": "done", "content": f"\\boxed{{{spec['answer']}}}"},
    ]
