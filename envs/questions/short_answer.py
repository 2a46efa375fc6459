"""Short answers compared exactly: a word or a name, a list in any or a given order, a number with its unit.

Level 1 of generated tasks asks for the value after one of three names. Level 2 asks for digits in order, or for the even
ones in any order. Level 3 asks for a quantity in another unit. A level draws from all levels up to it. `docs/data.md` lists
the row formats.

`rewards/short_answers.py` extracts and compares answers, `rewards/units.py` compares quantities. Part `f1` is SQuAD's F1 of
the words, or the F1 of the items of a list.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.row_fields import quote_value
from temper.envs.core.row_format import Row, RowFormat, field, golds, has_fields, read_json
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.core.worked_steps import demonstrate_answer
from temper.envs.task_env import TaskEnv, last_user_text
from temper.rewards.score import binary_score
from temper.rewards.short_answers import list_f1, matches_any, plain, short_answer, word_f1
from temper.rewards.units import is_same_quantity, quantity, unit

F1 = "f1"
REQUEST = "Put the answer, and nothing else, in \\boxed{}."
LIST_REQUEST = "Put the answers, separated by semicolons, in \\boxed{}."
UNIT_REQUEST = "Put the answer with its unit in \\boxed{}."
Made = tuple[str, dict[str, Any], str]
THINGS = (
    "ink", "oak", "ice", "tea", "sun", "ant", "jam", "pig", "map", "key", "hat", "cup", "fox", "bed", "egg", "owl",
)  # fmt: skip
NAMES = ("Al", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo", "Kim", "Lee", "Max", "Ned", "Ola", "Pam")
UNITS = (("km", "m", 1000), ("h", "min", 60), ("kg", "g", 1000), ("min", "s", 60), ("m", "cm", 100), ("ft", "in", 12))


class ShortAnswerEnv(TaskEnv):
    """Single turn: the answer must match an accepted one."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        answer, spec = short_answer(parsed.answer), task.spec
        right, f1 = (False, 0.0) if answer is None else score_answer(answer, spec)
        said = binary_score(
            right, well_formed=answer is not None, detail=f"answered {(answer or 'nothing, or several')[:80]}"
        )
        return self.end(said.with_parts({F1: f1}))


def score_answer(answer: str, spec: dict[str, Any]) -> tuple[bool, float]:
    if "items" in spec:
        f1 = list_f1(answer, spec["items"], ordered=spec["ordered"])
        return f1 == 1.0, f1
    if "quantity" in spec:
        right = is_same_quantity(answer, spec["quantity"], tolerance=spec["tolerance"])
        return right, float(right)
    right = matches_any(answer, spec["accepted"])
    return right, 1.0 if right else word_f1(answer, spec["accepted"])


def _has(rng: random.Random) -> Made:
    names, things = rng.sample(NAMES, 3), rng.sample(THINGS, 3)
    facts = ". ".join(f"{name}: {thing}" for name, thing in zip(names, things, strict=True))
    right = rng.randrange(3)
    steps = f"{names[right]}: {things[right]}"
    return f"{facts}. {names[right]}?", {"accepted": [things[right]], "wrong": things[right - 1]}, steps


def _list(rng: random.Random) -> Made:
    digits = rng.sample(range(1, 100), rng.randint(3, 5))
    if rng.random() < 0.5:
        found, asked, ordered = sorted(digits), "Sort", True
    else:
        digits = [rng.randrange(2, 100, 2), rng.randrange(1, 100, 2), *(one for one in digits[2:])]
        digits = list(dict.fromkeys(digits))
        rng.shuffle(digits)
        found, asked, ordered = [one for one in digits if one % 2 == 0], "Which are even", False
    question = f"{asked}: {' '.join(map(str, digits))}{'' if ordered else '?'}"
    return question, {"items": [[str(one)] for one in found], "ordered": ordered}, " ".join(map(str, found))


def _quantity(rng: random.Random) -> Made:
    large, small, size = rng.choice(UNITS)
    count, rest = rng.randint(2, 12), rng.randint(0, 11)
    total = count * size + rest
    facts = f"{count} {large}" + (f" {rest} {small}" if rest else "")
    steps = f"{count}*{size}={count * size} +{rest}={total}"
    return f"{facts} in {small}?", {"quantity": f"{total} {small}", "tolerance": 0.0}, steps


LEVELS: dict[int, Callable[[random.Random], Made]] = {1: _has, 2: _list, 3: _quantity}


def generate(rng: random.Random, level: int) -> Task:
    question, spec, steps = LEVELS[rng.randint(1, level)](rng)
    return Task(messages=({"role": "user", "content": question},), spec=spec | {"steps": steps})


def _right(task: Task) -> str:
    spec = task.spec
    if "items" in spec:
        return "; ".join(one[0] for one in spec["items"])
    return str(spec["quantity"] if "quantity" in spec else spec["accepted"][0])


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, _right(task))


def reference(task: Task) -> list[str]:
    right = _right(task)
    return [
        f"\\boxed{{{right}}}" if right.count("{") == right.count("}") == right.count("\\") == 0 else f"Answer: {right}"
    ]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right, spec = _right(task), task.spec
    yield "empty", [""]
    yield "an empty box", ["\\boxed{}"]
    yield "a box that is not closed", [f"\\boxed{{{right}"]
    yield "two boxes that differ", [f"\\boxed{{{right}}} \\boxed{{surely not this}}"]
    yield "statements that differ", [f"Answer: {right}\nAnswer: surely not this"]
    yield "something else behind it", [f"\\boxed{{{right}, or surely not this}}"]
    yield "the question repeated", [last_user_text(task)]
    yield from ((name, [f"\\boxed{{{wrong}}}"]) for name, wrong in _near(right, spec))


def _near(right: str, spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "items" in spec:
        items = [one[0] for one in spec["items"]]
        yield "an item more", "; ".join([*items, "surely not this"])
        yield "an item twice", "; ".join([*items, items[-1]])
        if len(items) > 1:
            yield "an item less", "; ".join(items[:-1])
        if spec["ordered"] and len({plain(item) for item in items}) > 1:
            yield "another order", "; ".join(items[::-1] if items[::-1] != items else sorted(items))
    elif "quantity" in spec:
        number, _, measure = right.partition(" ")
        yield "no unit", number
        yield "another unit", f"{number} {'cd' if measure != 'cd' else 'mol'}"
        yield "a prefix too many", f"{number} million {measure}"
        yield "two quantities", f"{right} or 1 {measure}"
    else:
        yield "a digit more", f"{right} 7"
        if "wrong" in spec:
            yield "what another one has", spec["wrong"]


def parse_accepted(value: Any, name: str) -> dict[str, Any]:
    """Return the spec of a field with accepted answers. Raise `ValueError` with the field if no answer can match one."""
    return _matched({"accepted": golds(value, name)}, name)


def _matched(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a spec. Raise `ValueError` if its own right answers, in a box, as a statement or as JSON, do not match it."""
    items = [texts[0] for texts in spec.get("items", ())]
    rights = ["; ".join(items), json.dumps(items)] if items else spec.get("accepted", [spec.get("quantity")])
    for right in rights:
        for form in (f"\\boxed{{{right}}}", f"Answer: {right}"):
            answer = short_answer(form)
            if answer is not None and score_answer(answer, spec)[0]:
                return spec
    raise ValueError(f"{name} is {quote_value(rights[0])}, which no answer can match; give a shorter or plainer answer")


def _asked(question: str, context: Any, spec: dict[str, Any], request: str = REQUEST) -> Task:
    if not question.strip():
        raise ValueError("the question is empty")
    parts = [part for part in (format_context(context), question.strip(), request) if part]
    return Task(messages=({"role": "user", "content": "\n\n".join(parts)},), spec=spec)


def format_context(context: Any) -> str:
    """Return the text of a context: a text, or HotpotQA's paragraphs (`title` and `sentences`)."""
    match context:
        case None:
            return ""
        case str():
            return context.strip()
        case {"title": list(titles), "sentences": list(sentences)} if len(titles) == len(sentences):
            paragraphs = zip(titles, sentences, strict=True)
            return "\n\n".join(f"{title}\n{''.join(map(str, said)).strip()}" for title, said in paragraphs)
    raise ValueError(f"field 'context' must be a text, or have 'title' and 'sentences', not {context!r:.80}")


def _squad_task(row: Row) -> Task:
    texts = field(field(row, "answers", dict), "text", list)
    return _asked(field(row, "question", str), field(row, "context", str), parse_accepted(texts, "answers.text"))


def _trivia_task(row: Row) -> Task:
    answer = row["answer"]
    aliases = field(answer, "aliases", list) if answer.get("aliases") is not None else []
    spec = parse_accepted([field(answer, "value", str), *aliases], "answer")
    return _asked(field(row, "question", str), None, spec)


def _pop_task(row: Row) -> Task:
    answers = row["possible_answers"]
    listed = read_json(answers, "possible_answers") if isinstance(answers, str) else answers
    if not isinstance(listed, list):
        raise ValueError(f"possible_answers is {quote_value(answers)}; it must be a list")
    return _asked(field(row, "question", str), None, parse_accepted(listed, "possible_answers"))


def _longbench_task(row: Row) -> Task:
    return _asked(
        field(row, "input", str), field(row, "context", str), parse_accepted(field(row, "answers", list), "answers")
    )


def _items_task(row: Row) -> Task:
    items = field(row, "items", list)
    if not items:
        raise ValueError("items is []; a list needs an item")
    ordered = row.get("ordered", False)
    if not isinstance(ordered, bool):
        raise ValueError(f"field 'ordered' is {ordered!r}; it must be true or false")
    spec = _matched({"items": [golds(item, "items") for item in items], "ordered": ordered}, "items")
    return _asked(field(row, "question", str), row.get("context"), spec, LIST_REQUEST)


def _quantity_task(row: Row) -> Task:
    measure, tolerance = field(row, "unit", str), row.get("tolerance", 0.0)
    if unit(measure) is None or not measure.strip():
        raise ValueError(f"field 'unit' is {measure!r}, an unknown unit; remove it and put it into the question")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ValueError(f"field 'tolerance' is {tolerance!r}; it must be a share of the answer, from 0 and below 1")
    asked = f"{row.get('answer')} {measure.strip()}"
    if quantity(asked) is None:
        raise ValueError(f"answer is {quote_value(row.get('answer'))}; it must be a number")
    spec = {"quantity": asked, "tolerance": float(tolerance)}
    return _asked(field(row, "question", str), row.get("context"), spec, UNIT_REQUEST)


def _qa_task(row: Row) -> Task:
    spec = parse_accepted(row["answer"], "answer")
    return _asked(field(row, "question", str), row.get("context"), spec)


ENVIRONMENT = EnvDefinition(
    id="short_answer",
    entry_point="temper.envs.questions.short_answer:ShortAnswerEnv",
    generate=generate,
    levels=len(LEVELS),
    formats=(
        RowFormat(name="squad", matches=has_fields("question", "context", "answers"), load=_squad_task),
        RowFormat(name="longbench", matches=has_fields("input", "context", "answers"), load=_longbench_task),
        RowFormat(name="popqa", matches=has_fields("question", "possible_answers"), load=_pop_task),
        RowFormat(name="items", matches=has_fields("question", "items"), load=_items_task),
        RowFormat(
            name="triviaqa",
            matches=lambda row: "question" in row and isinstance(row.get("answer"), dict),
            load=_trivia_task,
        ),
        RowFormat(name="quantity", matches=has_fields("question", "answer", "unit"), load=_quantity_task),
        RowFormat(name="qa", matches=has_fields("question", "answer"), load=_qa_task),
    ),
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
    parts=(*PARTS, F1),
    max_turns=1,
)
