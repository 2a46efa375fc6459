"""Structured output: a JSON answer, valid under a schema, with the values of a text.

Level 1 of generated tasks asks for some named numbers of a line. Level 2 asks for records of people with texts, numbers,
booleans and lists from sentences. Level 3 asks for orders with a list of objects, an enumeration, a nullable value and a
sum. A level draws from all levels up to it. `docs/data.md` lists the row formats. A row with an invalid right value, or a
schema that refers to other documents, is refused.

The part `valid` is 1 for JSON that is valid under the schema, `values` is the share of right values at their places. A
right answer is valid, with all values right and none missing or added (`rewards/json_answers.py`,
`rewards/json_schemas.py`).
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import GraderError
from temper.envs.core.messages import is_messages, read_prompt
from temper.envs.core.row_fields import quote_value
from temper.envs.core.row_format import Row, RowFormat, field, has_fields
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.core.worked_steps import demonstrate_answer
from temper.envs.task_env import TaskEnv
from temper.rewards.json_answers import NoJson, is_same_json, json_answer, parse_json, share_right
from temper.rewards.score import CORRECT, FORMAT, Outcome, Score, policy_fault

VALID, VALUES = "valid", "values"
REQUEST = "Answer with JSON that is valid under this schema:\n{}"
ANY_VALUE = "Give an example, as JSON, that is valid under this JSON schema:\n{}"
NAMES = (
    "Amy", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon", "Kim", "Leo", "Mia", "Ned", "Pam", "Tom",
)  # fmt: skip
CITIES = ("Bern", "Cork", "Oslo", "Pisa", "Riga", "Turku", "Vaduz", "York")
THINGS = ("apple", "book", "cup", "fork", "lamp", "map", "pen", "ring", "shoe", "vase")
INTEGER, TEXT, BOOLEAN = ({"type": name} for name in ("integer", "string", "boolean"))


class StructuredOutputEnv(TaskEnv):
    """Single turn: the answer must be valid JSON with the right values."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        return self.end(judge(parsed.answer, task.spec))


def judge(text: str, spec: dict[str, Any]) -> Score:
    """Score an answer by the `schema` of a task and its right `value`, if it has one."""
    from temper.rewards.json_schemas import TooMuchWork, UnusableSchema, first_error  # imports slowly

    try:
        value = json_answer(text)
        error = first_error(value, spec["schema"])
    except NoJson as reason:
        return _score(0.0, well_formed=False, valid=False, detail=str(reason))
    except TooMuchWork as excess:
        return policy_fault(str(excess))
    except UnusableSchema as fault:
        raise GraderError(str(fault)) from fault
    share = share_right(value, spec["value"]) if "value" in spec else float(error is None)
    same = "value" not in spec or is_same_json(value, spec["value"])
    detail = error or ("the right value" if same else f"other values: {json.dumps(value)[:80]}")
    return _score(share, correct=same and error is None, valid=error is None, detail=detail)


def _score(values: float, *, detail: str, valid: bool, correct: bool = False, well_formed: bool = True) -> Score:
    parts = {CORRECT: float(correct), FORMAT: float(well_formed), VALID: float(valid), VALUES: values}
    return Score(outcome=Outcome.OK if correct else Outcome.WRONG, parts=parts, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A text, its content as an object with a schema, and the steps that find it."""

    text: str
    schema: dict[str, Any]
    value: dict[str, Any]
    steps: str = ""
    request: str = REQUEST


def close_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*properties], "additionalProperties": False}


def _numbers(rng: random.Random) -> Record:
    names = rng.sample("abcdefgh", rng.randint(3, 4))
    numbers = {name: rng.randint(0, 99) for name in names}
    names_used = sorted(rng.sample(names, rng.randint(1, 2)))
    return Record(
        text=" ".join(f"{name}={number}" for name, number in numbers.items()),
        schema=close_schema(dict.fromkeys(names_used, INTEGER)),
        value={name: numbers[name] for name in names_used},
        steps=" ".join(f"{name}={numbers[name]}" for name in names_used),
        request="JSON {" + ", ".join(f'"{name}": integer' for name in names_used) + "}",
    )


def _person(rng: random.Random) -> Record:
    name, city, member = rng.choice(NAMES), rng.choice(CITIES), rng.random() < 0.5
    age, likes = rng.randint(18, 90), sorted(rng.sample(THINGS, rng.randint(1, 3)))
    said = {
        "age": (f"{name} is {age} years old.", INTEGER, age),
        "city": (f"{name} lives in {city}.", TEXT, city),
        "member": (f"{name} is {'a' if member else 'no'} member.", BOOLEAN, member),
        "likes": (f"{name} likes: {', '.join(likes)}.", {"type": "array", "items": TEXT}, likes),
    }
    sentences = [sentence for sentence, _, _ in said.values()]
    rng.shuffle(sentences)
    names_used = rng.sample(list(said), rng.randint(2, 4))
    value = {"name": name} | {key: said[key][2] for key in names_used}
    return Record(
        text=" ".join(sentences),
        schema=close_schema({"name": TEXT} | {key: said[key][1] for key in names_used}),
        value=value,
        steps=" ".join(f"{key}={json.dumps(inner)}" for key, inner in value.items()),
    )


def _order(rng: random.Random) -> Record:
    bought = [(thing, rng.randint(1, 5), rng.randint(1, 20)) for thing in rng.sample(THINGS, rng.randint(1, 3))]
    name, speed, city = rng.choice(NAMES), rng.choice(("standard", "express")), rng.choice((None, *CITIES))
    total = sum(count * price for _, count, price in bought)
    listed = ", ".join(f"{count} x {thing} at {price}" for thing, count, price in bought)
    item = close_schema({"name": TEXT, "count": INTEGER, "price": INTEGER})
    return Record(
        text=f"{name} orders: {listed}. Delivery: {speed}{f', to {city}' if city else ', no address yet'}.",
        schema=close_schema(
            {
                "customer": TEXT,
                "delivery": {"enum": ["standard", "express"]},
                "city": {"type": ["string", "null"]},
                "items": {"type": "array", "minItems": 1, "items": item},
                "total": INTEGER | {"description": "the sum of count times price"},
            }
        ),
        value={
            "customer": name,
            "delivery": speed,
            "city": city,
            "items": [{"name": thing, "count": count, "price": price} for thing, count, price in bought],
            "total": total,
        },
        steps="+".join(f"{count}*{price}" for _, count, price in bought) + f"={total}",
    )


LEVELS: dict[int, Callable[[random.Random], Record]] = {1: _numbers, 2: _person, 3: _order}


def generate(rng: random.Random, level: int) -> Task:
    record = LEVELS[rng.randint(1, level)](rng)
    request = record.request.format(json.dumps(record.schema)) if record.request is REQUEST else record.request
    spec = {"schema": record.schema, "value": record.value, "steps": record.steps}
    return Task(messages=({"role": "user", "content": f"{record.text}\n{request}"},), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, json.dumps(task.spec.get("value")))


def reference(task: Task) -> list[str]:
    return [f"```json\n{json.dumps(_value(task), indent=1)}\n```"]


def _value(task: Task) -> Any:
    if "value" not in task.spec:
        raise ValueError(f"task {task.label} accepts any valid value and has no reference")
    return task.spec["value"]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right = json.dumps(_value(task))
    for name, value in _wrong(_value(task)):
        yield name, [json.dumps(value)]
    yield "empty", [""]
    yield "cut off", [right[:-1]] if len(right) > 1 else [""]
    yield "text around it without a fence", [f"Here it is: {right}"]
    yield "two fences that differ", [f"```json\n{right}\n```\n```json\n[{right}]\n```"]
    yield "the schema", [json.dumps(task.spec["schema"])]
    yield "a comment", [f"{right} // done"]
    yield "in a list", [f"[{right}]"]
    yield "as a string", [json.dumps(right)]


def _wrong(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            yield "a surplus key", value | {"surplus_key": 1}
            for key, inner in value.items():
                yield "a missing key", {name: it for name, it in value.items() if name != key}
                yield from ((name, value | {key: wrong}) for name, wrong in _wrong(inner))
        case list():
            yield "a surplus item", [*value, value[-1] if value else 1]
            if value:
                yield "a missing item", value[:-1]
                yield from ((name, [wrong, *value[1:]]) for name, wrong in _wrong(value[0]))
        case bool():
            yield from (("another value", not value), ("another type", int(value)))
        case int() | float():
            yield from (("another value", value + 1), ("another type", json.dumps(value)))
        case str():
            yield from (("another value", f"{value} x"), ("another type", [value]))
        case None:
            yield "another type", "null"


def load(row: Row) -> Task:
    from temper.rewards.json_schemas import first_error, require_schema  # imports slowly

    schema = _json_field(row, "schema" if "schema" in row else "json_schema")
    name = "completion" if "completion" in row else "answer"
    value = _json_field(row, name)
    require_schema(schema)
    error = first_error(value, schema)
    if error is not None:
        raise ValueError(f"{name}: the right value is not valid under the schema: {error}")
    judged = judge(json.dumps(value), {"schema": schema, "value": value})
    if judged.outcome is not Outcome.OK:
        raise ValueError(f"{name} is {quote_value(value)}, which no answer can equal: {judged.detail}")
    prompt = row["prompt" if "prompt" in row else "question"]
    if isinstance(prompt, str) and not is_messages(prompt):
        prompt = [{"role": "user", "content": f"{prompt.strip()}\n\n{REQUEST.format(json.dumps(schema))}"}]
    return Task(messages=tuple(read_prompt(prompt, name="prompt")), spec={"schema": schema, "value": value})


def load_schema(row: Row) -> Task:
    from temper.rewards.json_schemas import require_schema  # imports slowly

    schema = require_schema(_json_field(row, "json_schema"))
    message = {"role": "user", "content": ANY_VALUE.format(json.dumps(schema))}
    return Task(messages=(message,), spec={"schema": schema})


def _json_field(row: Row, name: str) -> Any:
    value = field(row, name, object)
    try:
        return parse_json(value) if isinstance(value, str) else value
    except NoJson as error:
        raise ValueError(f"field {name!r}: {error}") from error


def _extracts(row: Row) -> bool:
    has_prompt = "prompt" in row or "question" in row
    return has_prompt and ("schema" in row or "json_schema" in row) and ("completion" in row or "answer" in row)


ENVIRONMENT = EnvDefinition(
    id="structured_output",
    entry_point="temper.envs.questions.structured_output:StructuredOutputEnv",
    generate=generate,
    levels=len(LEVELS),
    formats=(
        RowFormat(name="json_mode", matches=_extracts, load=load, questions=()),
        RowFormat(name="json_schema", matches=has_fields("json_schema"), load=load_schema),
    ),
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
    parts=(*PARTS, VALID, VALUES),
    max_turns=1,
)
