"""Search in a local corpus: questions that its documents answer, with the tools `search(query)` and `open(id)`.

Each generated task has a new corpus, so answers can't be memorised. Level 1 asks for a person's home, with one document for
each of four people. Level 2 asks for the home of a person's boss, in two documents. Level 3 does so among twelve people who
share names. A level draws from all levels up to it.

The corpus of rows is the file `corpus.jsonl` in their folder, or option `corpus`: a file, a folder or a hub name
(`docs/data.md`). Options: `results` of a search (5), `snippet` (characters of text per result, 160) and `page` (characters
of an opened document, 4000).

The answer is the first turn without calls, and `rewards/short_answers.py` compares it. Parts: `found` (the share of the
reference documents that were opened, 1 if none are known) and `tool_errors` (the share of failed calls).
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.core.bounds import require_int, require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.row_format import Row, RowFormat, field, has_fields
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import Call, ParsedTurn, make_call_turn, turn_text
from temper.envs.questions.made_words import draw_words
from temper.envs.questions.short_answer import parse_accepted
from temper.envs.task_env import MAX_CALLS, TaskEnv, answer_each
from temper.envs.tools.corpus import Corpus, load_corpus, make_corpus
from temper.envs.tools.text_tool import TextTool, answer_call, schemas
from temper.rewards.score import TOOL_ERRORS, Score, binary_score, error_rate
from temper.rewards.short_answers import matches_any, short_answer

FOUND = "found"
MAX_TURNS = 8
BESIDE = "corpus.jsonl"
REQUEST = "Search for the answer. Then put it, and nothing else, in \\boxed{}."
SURNAMES = ("fox", "day", "orr", "kay", "may", "lim")
TOWNS = (
    "Rome", "Oslo", "Lima", "Bonn", "Cork", "Nice", "Kyiv", "Doha", "Bern", "York", "Lund", "Pisa", "Graz", "Bari",
    "Baku",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The corpus, and the amount of text that a call shows."""

    corpus: str | None = None
    results: int = 5
    snippet: int = 160
    page: int = 4000

    def __post_init__(self) -> None:
        if self.corpus is not None and not isinstance(self.corpus, str):
            raise ValueError(f"options.corpus is {self.corpus!r}; set a file, a folder or a hub name")
        require_int("options.results", self.results, least=1)
        require_int("options.snippet", self.snippet)
        require_int("options.page", self.page, least=1)


class SearchEnv(TaskEnv):
    """A turn with calls is answered by one tool message per call. The first turn without calls is the answer."""

    def begin(self, task: Task) -> None:
        self.opened: set[str] = set()
        self.calls = self.errors = 0
        self.tools = tools(_corpus(task), _options(task), self.opened)

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        if not parsed.calls:
            answer = short_answer(parsed.answer)
            right = answer is not None and matches_any(answer, task.spec["accepted"])
            said = binary_score(right, well_formed=answer is not None, detail=f"answered {(answer or '')[:80]}")
            return self.end(self._with_parts(said, task))
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns without an answer")
        results = answer_each(parsed.calls, lambda call: answer_call(call, self.tools))
        self.calls += len(results)
        self.errors += sum(result.startswith("error:") for result in results)
        return self.continue_with([{"role": "tool", "content": result} for result in results])

    def score_so_far(self, task: Task) -> Score:
        return self._with_parts(binary_score(False), task)

    def _with_parts(self, score: Score, task: Task) -> Score:
        wanted = set(task.spec["reference_ids"])
        found = len(wanted & self.opened) / len(wanted) if wanted else 1.0
        return score.with_parts({FOUND: found, TOOL_ERRORS: error_rate(self.errors, self.calls)})


def tools(corpus: Corpus | None, options: SearchOptions, opened: set[str]) -> dict[str, TextTool]:
    def search(query: str) -> str:
        assert corpus is not None
        found = corpus.search(query, options.results)
        if not found:
            return "nothing found"
        lines = (f"{one.id}: {' '.join(f'{one.title} {one.text[: options.snippet]}'.split())}" for one in found)
        return "\n".join(lines)

    def open_document(name: str) -> str:
        assert corpus is not None
        document = corpus.open(name.strip())
        opened.add(document.id)
        return f"{document.title}\n{document.text}"[: options.page].strip()

    return {
        "search": TextTool(
            argument="query", run=search, description="The best documents for these words: ids and titles."
        ),
        "open": TextTool(argument="id", run=open_document, description="The text of a document."),
    }


TOOLS = schemas(tools(None, SearchOptions(), set()))


def _options(task: Task) -> SearchOptions:
    given = dict(task.env.options)
    return SearchOptions(**given if "documents" not in task.spec else given | {"snippet": 0})


def _corpus(task: Task) -> Corpus:
    try:
        if "documents" in task.spec:
            return make_corpus(tuple((name, title, text) for name, title, text in task.spec["documents"]))
        return load_corpus(str(task.env.options["corpus"]))
    except (ValueError, OSError) as error:
        raise EnvironmentFault(f"the corpus can't be read: {error}") from error


def generate(rng: random.Random, level: int) -> Task:
    drawn = rng.randint(1, level)
    if drawn == 3:
        people = [f"{name} {surname}" for name in draw_words(rng, 3) for surname in rng.sample(SURNAMES, 4)]
    else:
        people = draw_words(rng, 4)
    rng.shuffle(people)
    towns = rng.sample(TOWNS, len(people))
    ids = [str(number) for number in rng.sample(range(1, 100), len(people))]
    asked, boss = 0, 1
    lines = [f"{person} lives in {town}." for person, town in zip(people, towns, strict=True)]
    if drawn == 1:
        question, path, answer = f"Where does {people[asked]} live?", [asked], towns[asked]
    else:
        question, path, answer = f"Where does the boss of {people[asked]} live?", [asked, boss], towns[boss]
        lines[asked] += f" The boss is {people[boss]}."
    order = rng.sample(range(len(people)), len(people))
    spec = {
        "accepted": [answer],
        "reference_ids": [ids[place] for place in path],
        "documents": [[ids[place], people[place], lines[place]] for place in order],
        "path": [people[place] for place in path],
        "wrong": towns[2],
    }
    return Task(messages=({"role": "user", "content": question},), spec=spec, tools=TOOLS)


def demonstrate(task: Task) -> list[Message]:
    spec = task.spec
    if "path" not in spec:
        raise ValueError("a row of data has no demonstration; use a generated task")
    known = tools(_corpus(task), _options(task), set())
    said: list[Message] = []
    for person, name in zip(spec["path"], spec["reference_ids"], strict=True):
        for reasoning, call in ((person, ("search", {"query": person})), (name, ("open", {"id": name}))):
            said.append(make_call_turn([call], reasoning=reasoning))
            said.append({"role": "tool", "content": answer_call(Call(name=call[0], arguments=call[1]), known)})
    last = spec["accepted"][0]
    return [*said, {"role": "assistant", "reasoning_content": last, "content": f"\\boxed{{{last}}}"}]


def reference(task: Task) -> list[str]:
    if "path" in task.spec:
        return [turn_text(message, thinks=False) for message in demonstrate(task) if message["role"] == "assistant"]
    opening = [("open", {"id": name}) for name in task.spec["reference_ids"][:MAX_CALLS]]
    asked = [turn_text(make_call_turn(opening), thinks=False)] if opening else []
    return [*asked, f"Answer: {task.spec['accepted'][0]}"]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    *asked, answered = reference(task)
    right = task.spec["accepted"][0]
    yield "no answer", asked
    yield "empty answer", [*asked, ""]
    yield "answers that differ", [*asked, f"\\boxed{{{right}}} \\boxed{{surely not this}}"]
    yield "something else behind it", [*asked, f"\\boxed{{{right} or surely not this}}"]
    yield "a call that never ends", [*asked, f"<tool_call>{answered}"]
    if "wrong" in task.spec:
        yield "where another one lives", [*asked, f"\\boxed{{{task.spec['wrong']}}}"]


def _load(row: Row, *, corpus: str) -> Task:
    name = "golden_answers" if "golden_answers" in row else "answer"
    spec = parse_accepted(row[name], name)
    reference_ids = [str(name) for name in (field(row, "reference_ids", list) if "reference_ids" in row else [])]
    known = load_corpus(corpus).by_id
    if missing := [name for name in reference_ids if name not in known]:
        raise ValueError(f"field 'reference_ids' names {missing[0]!r}, which is not in {corpus}")
    content = f"{field(row, 'question', str).strip()}\n\n{REQUEST}"
    return Task(
        messages=({"role": "user", "content": content},),
        spec=spec | {"reference_ids": reference_ids},
        tools=TOOLS,
    )


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, [option.name for option in fields(SearchOptions)], "options")
    return _definition(SearchOptions(**options))


def _beside(folder: Path, *, options: SearchOptions) -> EnvDefinition:
    file = folder.resolve() / BESIDE
    if not file.is_file():
        raise ValueError(f"{file} does not exist; put the corpus there, or set options.corpus")
    return _definition(replace(options, corpus=str(file)))


def _definition(options: SearchOptions) -> EnvDefinition:
    env = EnvDefinition(
        id="search",
        entry_point="temper.envs.questions.search:SearchEnv",
        generate=generate,
        levels=3,
        demonstrate=demonstrate,
        reference=reference,
        negatives=negatives,
        configure=configure,
        options=asdict(options),
        parts=(*PARTS, FOUND, TOOL_ERRORS),
        max_turns=MAX_TURNS,
    )
    if options.corpus is None:
        return replace(env, in_folder=partial(_beside, options=options), companions=(BESIDE,))
    rows = partial(_load, corpus=options.corpus)
    formats = (
        RowFormat(name="qa", matches=has_fields("question", "answer"), load=rows),
        RowFormat(name="flashrag", matches=has_fields("question", "golden_answers"), load=rows),
    )
    return replace(env, formats=formats)


ENVIRONMENT = _definition(SearchOptions())
