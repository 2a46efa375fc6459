"""Instruction following: a response to a prompt with exactly checkable instructions, as in IFEval (Zhou et al.,
Instruction-Following Evaluation for Large Language Models, 2023, arXiv 2311.07911) and IFBench (Pyatkin et al.,
Generalizing Verifiable Instruction Following, 2025, arXiv 2507.02833). The rules are in `rewards/instructions/`.

`envs/questions/requests.py` generates tasks. A row with an unsupported instruction, such as `language:response_language`,
is refused with the reason.

`correct` is strict accuracy by prompt: the unchanged response follows all instructions. If a single letter would follow
them all, a response with fewer than 10 letters and digits, or fewer than 5 distinct ones, follows nothing. No rule checks
whether the response answers the prompt. `loose` is the same by the loose criterion. `followed` is the share of followed
instructions. The published accuracy by instruction is the mean of `instructions_strict` (or `instructions_loose`) divided
by the mean of `instructions`.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.row_format import Row, RowFormat, field, has_fields, read_json
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.questions import requests
from temper.envs.task_env import TaskEnv
from temper.rewards.instructions.following import check_following
from temper.rewards.instructions.rules import Instruction, read_instruction
from temper.rewards.score import CORRECT, FORMAT, Outcome, Score

LOOSE, FOLLOWED = "loose", "followed"
LEAST_LETTERS, LEAST_DIFFERENT = 10, 5
"""Minimum numbers of letters and digits of a response, in all and distinct. They apply if a single letter follows all
instructions.
"""
COUNT, STRICT_COUNT, LOOSE_COUNT = "instructions", "instructions_strict", "instructions_loose"


class InstructionEnv(TaskEnv):
    """Single turn: the response must follow every instruction of the prompt."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        return self.end(judge(parsed.answer, instructions_of(task)))


def instructions_of(task: Task) -> list[Instruction]:
    return [Instruction(id=one["id"], arguments=one["arguments"]) for one in task.spec["instructions"]]


def judge(text: str, instructions: list[Instruction]) -> Score:
    is_empty = not _says_something(text) and all(check_following("x", instructions).strict)
    found = check_following("" if is_empty else text, instructions)
    correct = all(found.strict)
    parts = {
        CORRECT: float(correct),
        FORMAT: float(bool(text.strip())),
        LOOSE: float(all(found.loose)),
        FOLLOWED: sum(found.strict) / len(instructions),
        COUNT: float(len(instructions)),
        STRICT_COUNT: float(sum(found.strict)),
        LOOSE_COUNT: float(sum(found.loose)),
    }
    missed = [one.id for one, holds in zip(instructions, found.strict, strict=True) if not holds]
    detail = f"not followed: {', '.join(missed)}" if missed else "all followed"
    return Score(outcome=Outcome.OK if correct else Outcome.WRONG, parts=parts, detail=detail)


def _says_something(text: str) -> bool:
    letters = [character for character in text.casefold() if character.isalnum()]
    return len(letters) >= LEAST_LETTERS and len(set(letters)) >= LEAST_DIFFERENT


def generate(rng: random.Random, level: int) -> Task:
    request = requests.draw(rng, level)
    asked = [(ask.id, ask.arguments) for ask in request.asks]
    return _task(request.text, asked, {"response": request.response})


def demonstrate(task: Task) -> list[Message]:
    names = " ".join(one["id"].partition(":")[2].replace("_", " ").split()[-1] for one in task.spec["instructions"])
    return [{"role": "assistant", "reasoning_content": names, "content": _response(task)}]


def reference(task: Task) -> list[str]:
    return [_response(task)]


def _response(task: Task) -> str:
    if "response" not in task.spec:
        raise ValueError("a row of data has no reference response; use a generated task")
    return str(task.spec["response"])


Break = Callable[[str, Mapping[str, Any]], str]
BREAKS: dict[str, Break] = {
    "keywords:existence": lambda text, given: re.sub(re.escape(given["keywords"][0]), "it", text, flags=re.IGNORECASE),
    "keywords:frequency": lambda text, given: f"{given['keyword']} once",
    "keywords:forbidden_words": lambda text, given: f"{text} {given['forbidden_words'][0]}",
    "keywords:letter_frequency": lambda text, given: text + given["letter"] * given["let_frequency"],
    "length_constraints:number_words": lambda text, given: text.split()[0],
    "length_constraints:number_sentences": lambda text, given: text.replace(".", ""),
    "length_constraints:number_paragraphs": lambda text, given: f"{text}\n***\nmore",
    "length_constraints:nth_paragraph_first_word": lambda text, given: text.replace("\n\n", "\n\nthe "),
    "detectable_content:number_placeholders": lambda text, given: text.replace("[", "("),
    "detectable_content:postscript": lambda text, given: text.replace("P.S.", "PS"),
    "detectable_format:number_bullet_lists": lambda text, given: f"{text}\n* more",
    "detectable_format:constrained_response": lambda text, given: text.replace("My answer", "The answer"),
    "detectable_format:number_highlighted_sections": lambda text, given: text.replace("*", ""),
    "detectable_format:multiple_sections": lambda text, given: text.replace("SECTION", "PART"),
    "detectable_format:json_format": lambda text, given: f"{text} and more",
    "detectable_format:title": lambda text, given: text.replace("<<", "<"),
    "combination:two_responses": lambda text, given: text.replace("******", "***"),
    "combination:repeat_prompt": lambda text, given: f"Well. {text}",
    "startend:end_checker": lambda text, given: f"{text} And more.",
    "startend:quotation": lambda text, given: text[:-1],
    "change_case:capital_word_frequency": lambda text, given: text.lower(),
    "change_case:english_capital": lambda text, given: f"{text} a",
    "change_case:english_lowercase": lambda text, given: f"{text} A",
    "punctuation:no_comma": lambda text, given: f"{text}, and more",
    "words:alphabet": lambda text, given: " ".join(reversed(text.split())),
    "words:no_consecutive": lambda text, given: f"{text} {text.split()[-1]}",
    "words:repeats": lambda text, given: f"{text} {text}",
    "words:paragraph_last_first": lambda text, given: f"{text} too",
    "format:newline": lambda text, given: text.replace("\n", " "),
    "format:parentheses": lambda text, given: text.replace("([", "(", 1),
    "format:quotes": lambda text, given: text.replace("'", ""),
    "format:no_whitespace": lambda text, given: text.replace("-", " "),
    "format:line_indent": lambda text, given: text.replace("\n ", "\n"),
    "count:numbers": lambda text, given: f"{text} 8",
    "sentence:increment": lambda text, given: f"{text} Too.",
}


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right = _response(task)
    for one in instructions_of(task):
        yield f"against {one.id}", [BREAKS[one.id](right, one.arguments)]
    yield "empty", [""]
    yield "white space", [" \n "]


def load(row: Row) -> Task:
    prompt, ids, given = field(row, "prompt", str), field(row, "instruction_id_list", list), field(row, "kwargs", list)
    if not ids or len(ids) != len(given):
        counts = f"instruction_id_list and kwargs have {len(ids)} instructions and {len(given)} kwargs"
        raise ValueError(f"{counts}; give instructions with one kwargs each")
    instructions = [read_instruction(str(name), _mapping(one)) for name, one in zip(ids, given, strict=True)]
    return _task(prompt, [(one.id, one.arguments) for one in instructions], {})


def _mapping(given: Any) -> Mapping[str, Any]:
    read = read_json(given, "kwargs") if isinstance(given, str) else given
    if not isinstance(read or {}, dict):
        raise ValueError(f"field 'kwargs' must hold mappings, not {read!r:.80}")
    return read or {}


def _task(prompt: str, asked: Sequence[tuple[str, Mapping[str, Any]]], more: dict[str, Any]) -> Task:
    spec = {"instructions": [{"id": name, "arguments": dict(arguments)} for name, arguments in asked]} | more
    return Task(messages=({"role": "user", "content": prompt},), spec=spec)


ENVIRONMENT = EnvDefinition(
    id="instruction_following",
    entry_point="temper.envs.questions.instruction_following:InstructionEnv",
    generate=generate,
    levels=len(requests.LEVELS),
    formats=(RowFormat(name="ifeval", matches=has_fields("prompt", "instruction_id_list", "kwargs"), load=load),),
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
    parts=(*PARTS, LOOSE, FOLLOWED, COUNT, STRICT_COUNT, LOOSE_COUNT),
    max_turns=1,
    judges_form=True,
)
