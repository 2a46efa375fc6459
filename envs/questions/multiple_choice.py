"""Multiple choice: a question with lettered choices. The answer is the letter of the right one.

Levels of generated tasks: 1 asks for the given number, 2 for the sum of two numbers below ten, 3 for the smallest, the
largest or the even one of up to five two-digit numbers. A level draws from all levels up to it.

`docs/data.md` lists the row formats. The choices of a row are shuffled by a seed from the row itself, so a task is the same
in every run. A row is not shuffled if a choice refers to others (`none of the above`, `both A and B`). Option `shuffle:
false` keeps the order of the data, except for GPQA's rows, which list the right one first. `rewards/choices.py` extracts
the letter of an answer.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from temper.envs.core.bounds import require_known, require_type
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.row_fields import quote_value
from temper.envs.core.row_format import Row, RowFormat, field, gold, has_fields
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.core.worked_steps import demonstrate_answer, sum_steps
from temper.envs.task_env import TaskEnv, last_user_text
from temper.rewards.choices import LETTERS, chosen_letter
from temper.rewards.score import binary_score

REQUEST = "Put the letter of the right choice in \\boxed{}."
CHANCE = 0.7
"""Highest mean reward of one letter: half of 30 tasks may share it."""
SPEAKS_OF_OTHERS = re.compile(
    r"\b(?:none|all|any|both|neither|either|some)\b(?: of)?(?: the)? (?:above|below|these|those|others?|choices|options)\b|"
    r"\b(?:above|preceding) (?:answers?|choices|options)\b|\b(?:choice|option|answer)s? (?-i:\(?[A-J]\b)|"
    r"(?-i:\b[A-J]\)?,?) (?:and|or|nor|&) (?-i:\(?[A-J]\b)",
    re.IGNORECASE,
)
WRONG_OF_GPQA = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class MultipleChoiceEnv(TaskEnv):
    """Single turn: the letter must be the right choice."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        letter = chosen_letter(parsed.answer, count=task.spec["choices"])
        detail = "no letter, or several" if letter is None else f"chose {letter}"
        return self.end(binary_score(letter == task.spec["answer"], well_formed=letter is not None, detail=detail))


def format_question(question: str, choices: Sequence[str], request: str = REQUEST) -> str:
    """Return the text of a question: each lettered choice on a line, and the request."""
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join((question, *lines)) + (f"\n\n{request}" if request else "")


def _walk(numbers: list[int], right: int) -> str:
    return " ".join(f"{LETTERS[place]}. {number}" for place, number in enumerate(numbers[: right + 1]))


def _which(rng: random.Random) -> tuple[str, list[int], int, str]:
    """Return a question, its numbers, the index of the right one and the solution steps."""
    numbers = rng.sample(range(10), rng.randint(2, 4))
    right = rng.randrange(len(numbers))
    return f"Which is {numbers[right]}?", numbers, right, _walk(numbers, right)


def _sum(rng: random.Random) -> tuple[str, list[int], int, str]:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    wrong = rng.sample([number for number in range(2, 19) if number != a + b], rng.randint(1, 3))
    numbers = rng.sample([a + b, *wrong], len(wrong) + 1)
    right = numbers.index(a + b)
    return f"{a}+{b}=?", numbers, right, f"{sum_steps([a, b])} {_walk(numbers, right)}"


OUTSTANDING: dict[str, Callable[[list[int]], int]] = {
    "smallest": min,
    "largest": max,
    "even": lambda numbers: next(number for number in numbers if number % 2 == 0),
}


def _outstanding(rng: random.Random) -> tuple[str, list[int], int, str]:
    property_name = rng.choice(tuple(OUTSTANDING))
    numbers = rng.sample(range(10, 100), rng.randint(3, 5))
    if property_name == "even":
        numbers = [rng.randrange(10, 100, 2), *rng.sample(range(11, 100, 2), len(numbers) - 1)]
        rng.shuffle(numbers)
    right = numbers.index(OUTSTANDING[property_name](numbers))
    return f"Which is {property_name}?", numbers, right, f"{numbers[right]}: {_walk(numbers, right)}"


LEVELS: dict[int, Callable[[random.Random], tuple[str, list[int], int, str]]] = {1: _which, 2: _sum, 3: _outstanding}


def generate(rng: random.Random, level: int) -> Task:
    question, numbers, right, steps = LEVELS[rng.randint(1, level)](rng)
    content = format_question(question, [str(number) for number in numbers], request="")
    spec = {"answer": LETTERS[right], "choices": len(numbers), "steps": steps}
    return Task(messages=({"role": "user", "content": content},), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, task.spec["answer"])


def reference(task: Task) -> list[str]:
    return [f"\\boxed{{{task.spec['answer']}}}"]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right, letters = task.spec["answer"], LETTERS[: task.spec["choices"] + 1]
    others = [letter for letter in letters if letter != right]
    for letter in others:
        yield "another letter", [f"\\boxed{{{letter}}}"]
    yield "empty", [""]
    yield "all letters", [" ".join(letters)]
    yield "two letters", [f"{right} or {others[0]}"]
    yield "two boxes that differ", [f"\\boxed{{{right}}} \\boxed{{{others[0]}}}"]
    yield "a statement and another one", [f"The answer is {others[0]}. The answer is {right}."]
    yield "the question repeated", [last_user_text(task)]


def _list_task(row: Row, *, choices: str, shuffle: bool) -> Task:
    """Make a task of a row with a list of choices under this name. `answer` is a letter or a 0-based index."""
    texts = field(row, choices, list)
    answer = row.get("answer", row.get("answer_index"))
    if isinstance(answer, str) and re.fullmatch(r"\(?[A-Za-z]\)?\.?", answer.strip()):
        index = LETTERS.index(answer.strip(" ().").upper())
    elif isinstance(answer, int) and not isinstance(answer, bool):
        index = answer
    else:
        raise ValueError(f"answer is {quote_value(answer)}; it must be a letter or a 0-based index")
    return _task(field(row, "question", str), texts, index, shuffle=shuffle)


def _labelled_task(row: Row, *, shuffle: bool) -> Task:
    choices = field(row, "choices", dict)
    texts, labels = field(choices, "text", list), field(choices, "label", list)
    if len(texts) != len(labels) or labels.count(row["answerKey"]) != 1:
        raise ValueError(f"answerKey is {quote_value(row['answerKey'])}; it must be a label of {quote_value(labels)}")
    question = field(row, "question_stem" if "question_stem" in row else "question", str)
    return _task(question, texts, labels.index(row["answerKey"]), shuffle=shuffle)


def _gpqa_task(row: Row) -> Task:
    texts = [gold(field(row, name, str), name) for name in ("Correct Answer", *WRONG_OF_GPQA)]
    return _task(field(row, "Question", str), texts, 0, shuffle=True)


def _task(question: str, choices: list[Any], right: int, *, shuffle: bool) -> Task:
    texts = [choice if isinstance(choice, str) else gold(choice, "choices") for choice in choices]
    if not 2 <= len(texts) <= len(LETTERS):
        raise ValueError(f"a question needs 2 to {len(LETTERS)} choices, not {len(texts)}")
    if not 0 <= right < len(texts):
        raise ValueError(f"the answer is choice {right} (0-based) of {len(texts)}")
    gold(texts[right], "the right choice")
    if texts.count(texts[right]) > 1:
        raise ValueError(f"the right choice {texts[right]!r:.80} occurs twice")
    order = list(range(len(texts)))
    if shuffle and not any(SPEAKS_OF_OTHERS.search(text[:1000]) for text in texts):
        random.Random(json.dumps([question, texts])).shuffle(order)
    content = format_question(question.strip(), [texts[index] for index in order])
    spec = {"answer": LETTERS[order.index(right)], "choices": len(texts)}
    return Task(messages=({"role": "user", "content": content},), spec=spec)


def _formats(*, shuffle: bool) -> tuple[RowFormat, ...]:
    labelled = has_fields("choices", "answerKey")
    return (
        RowFormat(name="arc", matches=labelled, load=partial(_labelled_task, shuffle=shuffle)),
        RowFormat(
            name="mmlu",
            matches=has_fields("question", "choices", "answer"),
            load=partial(_list_task, choices="choices", shuffle=shuffle),
        ),
        RowFormat(
            name="mmlu_pro",
            matches=has_fields("question", "options"),
            load=partial(_list_task, choices="options", shuffle=shuffle),
        ),
        RowFormat(name="gpqa", matches=has_fields("Question", "Correct Answer", *WRONG_OF_GPQA), load=_gpqa_task),
    )


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, ("shuffle",), "options")
    shuffle = options.get("shuffle", True)
    require_type("options.shuffle", shuffle, bool)
    return _definition(shuffle=shuffle)


def _definition(*, shuffle: bool) -> EnvDefinition:
    return EnvDefinition(
        id="multiple_choice",
        entry_point="temper.envs.questions.multiple_choice:MultipleChoiceEnv",
        generate=generate,
        levels=len(LEVELS),
        formats=_formats(shuffle=shuffle),
        demonstrate=demonstrate,
        reference=reference,
        negatives=negatives,
        configure=configure,
        max_turns=1,
        chance=CHANCE,
    )


ENVIRONMENT = _definition(shuffle=True)
