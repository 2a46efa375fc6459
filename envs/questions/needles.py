"""Long-context retrieval: sentences with codes in a text of any length. The answer is the requested codes.

The tasks are RULER's retrieval tasks (Hsieh et al., arXiv 2404.06654, section 3): `single` has one needle, `many_keys` adds
needles with other keys, `many_values` has several needles with the requested key, and `many_queries` requests several keys.
These are also the levels 1 to 4 of generated tasks. A level draws from all levels up to it, unless option `task` names one.

Options: `length` and `unit` (`words`, `characters` or `tokens`) limit the prompt, without the chat template. The prompt is
less than one sentence shorter, unless its needles and its question are longer. Without a length level 1 has 24 words, and
each further level 48 more. Tokens are counted by `tokenizer`, a folder with a tokenizer.json. `haystack` is the filler
text: irrelevant `sentences`, or `needles` with other keys. `needles` is the number of other keys, values or queries (4).
`depth` is the position of the first requested needle, from 0 (first) to 1 (last), or anywhere by default.

A right answer (extracted by `rewards/short_answers.py`) has the requested codes, no other number, and at most 16 words per
code. Part `recall` is the share of the codes in it, as in RULER. Rows have RULER's `input` and `outputs`. If the outputs
are not numbers, an answer that has them all is right.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

from tokenizers import Tokenizer

from temper.envs.core.bounds import require_choice, require_fraction, require_int, require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.row_format import Row, RowFormat, gold, has_fields
from temper.envs.core.row_format import field as row_field
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.core.worked_steps import demonstrate_answer
from temper.envs.questions.made_words import CONSONANTS, VOWELS
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score
from temper.rewards.short_answers import short_answer

RECALL = "recall"
Kind = Literal["single", "many_keys", "many_values", "many_queries"]
Unit = Literal["words", "characters", "tokens"]
Haystack = Literal["sentences", "needles"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FIRST_WORDS, MORE_WORDS = 24, 48
MOST_WORDS = 16
"""Word limit of an answer per code, so that repeating the text is no answer."""
DIGITS = 4
MOST_NEEDLES = 1000
NAMES = ("ann", "bob", "cal", "dan", "eva", "fay", "gus", "hal", "ida", "jim", "kim", "lee", "max", "ned", "pat", "sue")
SYLLABLES = tuple(first + vowel for first in CONSONANTS for vowel in VOWELS)
SUBJECTS = (
    "The road", "A river", "The old house", "Her garden", "The sky", "A small bird", "The wind", "His coat",
    "The sea",
)  # fmt: skip
VERBS = ("is", "was", "looks", "seems", "stays", "grew", "felt", "became")
QUALITIES = ("grey", "calm", "warm", "quiet", "dark", "wide", "cold", "slow", "green", "bright", "soft", "empty")
PLACES = ("", "", " in spring", " at noon", " again", " after the rain", " for a while", " near the town")
NUMBERS = re.compile(r"(?<![\d.])\d+(?![\d.]*\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleOptions:
    """The options of the text."""

    length: int | None = None
    unit: Unit = "words"
    tokenizer: str | None = None
    task: Kind | None = None
    haystack: Haystack = "sentences"
    needles: int = 4
    depth: float | None = None

    def __post_init__(self) -> None:
        require_choice("options.unit", str(self.unit), get_args(Unit))
        require_choice("options.haystack", str(self.haystack), get_args(Haystack))
        if self.task is not None:
            require_choice("options.task", str(self.task), KINDS)
        if self.length is not None:
            require_int("options.length", self.length, least=1)
        require_int("options.needles", self.needles, least=1)
        if self.needles > MOST_NEEDLES:
            raise ValueError(f"options.needles is {self.needles}; set at most {MOST_NEEDLES}")
        if self.depth is not None:
            require_fraction("options.depth", self.depth)
        if (self.unit == "tokens") != (self.tokenizer is not None):
            raise ValueError(
                "options.unit=tokens needs options.tokenizer, a folder with a tokenizer.json, and only it does"
            )
        if self.unit == "tokens" and self.length is None:
            raise ValueError("options.length is missing; set the number of tokens")


class NeedleEnv(TaskEnv):
    """Single turn: the requested codes in any order, and no others."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        answer, wanted = short_answer(parsed.answer), task.spec["values"]
        if all(value.isdigit() for value in wanted):
            found = set(NUMBERS.findall(answer or ""))
            shared = found & set(wanted)
            right = found == set(wanted) and len((answer or "").split()) <= MOST_WORDS * len(wanted)
        else:
            shared = {value for value in wanted if value.lower() in (answer or "").lower()}
            right = shared == set(wanted)
        said = binary_score(right, well_formed=answer is not None, detail=f"{len(shared)} of {len(wanted)} found")
        return self.end(said.with_parts({RECALL: len(shared) / len(set(wanted))}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Needles:
    """The requested and the other needles: codes by their keys."""

    keys: list[str]
    asked: list[tuple[str, str]]
    others: list[tuple[str, str]] = field(default_factory=list)

    @property
    def question(self) -> str:
        *names, last = self.keys
        return f"What are the codes of {', '.join(names)} and {last}?" if names else f"What is the code of {last}?"


def _needle(key: str, value: str) -> str:
    return f"The code of {key} is {value}."


def _keys(rng: random.Random, count: int) -> list[str]:
    if count <= len(NAMES):
        return rng.sample(NAMES, count)
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault("".join(rng.choices(SYLLABLES, k=3)))
    return list(found)


def _needles(rng: random.Random, kind: Kind, count: int) -> Needles:
    values = [str(value) for value in rng.sample(range(10 ** (DIGITS - 1), 10**DIGITS), count + 1)]
    keys = _keys(rng, count + 1)
    if kind == "single":
        return Needles(keys=keys[:1], asked=[(keys[0], values[0])])
    if kind == "many_keys":
        others = list(zip(keys[1:], values[1:], strict=True))
        return Needles(keys=keys[:1], asked=[(keys[0], values[0])], others=others)
    if kind == "many_values":
        asked = [(keys[0], value) for value in values[:count]]
        return Needles(keys=keys[:1], asked=asked, others=[(keys[1], values[-1])])
    asked = list(zip(keys[:count], values[:count], strict=True))
    return Needles(keys=keys[:count], asked=asked, others=[(keys[-1], values[-1])])


def _hay(rng: random.Random, needles: Needles, haystack: Haystack) -> str:
    if haystack == "sentences":
        return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(QUALITIES)}{rng.choice(PLACES)}."
    taken, used = set(needles.keys), {value for _, value in needles.asked}
    while True:
        key, value = "".join(rng.choices(SYLLABLES, k=4)), str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
        if key not in taken and value not in used:
            return _needle(key, value)


@cache
def _tokenizer(folder: str) -> Callable[[str], int]:
    file = Path(folder).expanduser() / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"options.tokenizer: {folder} has no tokenizer.json; set the folder of a model")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _measure(options: NeedleOptions) -> Callable[[str], int]:
    if options.unit == "tokens":
        return _tokenizer(str(options.tokenizer))
    return len if options.unit == "characters" else lambda text: len(text.split())


def _text(rng: random.Random, needles: Needles, options: NeedleOptions, length: int) -> str:
    measure, asked = _measure(options), [_needle(*needle) for needle in needles.asked]
    placed = asked + [_needle(*needle) for needle in needles.others]
    room = length - measure(" ".join([*placed, needles.question]))
    hay: list[str] = []
    while room > 0:
        hay.append(_hay(rng, needles, options.haystack))
        room -= max(1, measure(f" {hay[-1]}"))
    while True:
        prompt = " ".join([*_mixed(rng, hay, placed, options.depth), needles.question])
        over = measure(prompt) - length
        if over <= 0 or not hay:
            return prompt
        while over > 0 and hay:
            over -= max(1, measure(f" {hay.pop()}"))


def _mixed(rng: random.Random, hay: list[str], placed: list[str], depth: float | None) -> list[str]:
    loose = placed if depth is None else placed[1:]
    total = len(hay) + len(loose)
    needles, others = iter(rng.sample(loose, len(loose))), iter(hay)
    places = set(rng.sample(range(total), len(loose)))
    mixed = [next(needles) if at in places else next(others) for at in range(total)]
    if depth is not None:
        mixed.insert(round(depth * total), placed[0])
    return mixed


def generate(rng: random.Random, level: int, *, options: NeedleOptions) -> Task:
    kind = options.task or KINDS[rng.randrange(level)]
    needles = _needles(rng, kind, options.needles)
    length = options.length or FIRST_WORDS + MORE_WORDS * (level - 1)
    spec = {
        "values": [value for _, value in needles.asked],
        "others": [value for _, value in needles.others],
        "steps": " ".join(f"{key} {value}" for key, value in needles.asked),
    }
    return Task(messages=({"role": "user", "content": _text(rng, needles, options, length)},), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, ", ".join(task.spec["values"]))


def reference(task: Task) -> list[str]:
    return [", ".join(task.spec["values"])]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    values, others = task.spec["values"], task.spec.get("others", [])
    yield "empty", [""]
    yield "another text", ["certainly not this"]
    yield "one left out", [", ".join(values[1:])]
    yield "a box that is not closed", [f"\\boxed{{{', '.join(values)}"]
    if all(value.isdigit() for value in values):
        yield "a digit more", [", ".join(f"{value}0" for value in values)]
        yield "one too many", [", ".join([*values, str(int(values[0]) + 1)])]
        if len(task.messages[-1]["content"].split()) > MOST_WORDS * len(values):
            yield "the text repeated", [task.messages[-1]["content"]]
        yield "joined", ["".join([*values, "0"])]
    if others:
        yield "the code of another", [", ".join([*values[1:], others[0]])]


def _ruler_task(row: Row) -> Task:
    outputs = [gold(output, "outputs") for output in row_field(row, "outputs", list)]
    if not outputs:
        raise ValueError("outputs is []; give the values to find")
    return Task(messages=({"role": "user", "content": row_field(row, "input", str)},), spec={"values": outputs})


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, [option.name for option in fields(NeedleOptions)], "options")
    needle_options = NeedleOptions(**options)
    _measure(needle_options)("")
    return _definition(needle_options)


def _definition(options: NeedleOptions) -> EnvDefinition:
    return EnvDefinition(
        id="needles",
        entry_point="temper.envs.questions.needles:NeedleEnv",
        generate=partial(generate, options=options),
        levels=len(KINDS),
        formats=(RowFormat(name="ruler", matches=has_fields("input", "outputs"), load=_ruler_task),),
        demonstrate=demonstrate,
        reference=reference,
        negatives=negatives,
        configure=configure,
        parts=(*PARTS, RECALL),
        max_turns=1,
    )


ENVIRONMENT = _definition(NeedleOptions())
