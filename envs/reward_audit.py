"""An audit of rewards with scripts: answers that ignore their task. Half of them need no reference answers."""

import ast
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from temper.envs.binding import BoundEnv
from temper.envs.core.definition import USUAL_CHANCE, EnvDefinition
from temper.envs.core.task import Task
from temper.envs.core.turn_text import CALL_BLOCK, make_call_turn, remove_calls, turn_text
from temper.envs.own_reward import ROW, copy_row
from temper.envs.source import data_of, distinct_tasks, open_source, read_first_rows
from temper.envs.task_env import last_user_text
from temper.envs.transcript import TranscriptScore, score_play, score_turns
from temper.rewards.score import correctness

AUDITED = 30
"""Maximum number of tasks per script."""
FEWEST = 20
"""Minimum number of tasks for a mean to be evidence."""
HOPELESS = 8
"""A script without any reward is stopped after this many tasks."""
OTHERS = 10
"""Number of tasks whose reference answers are tried on all other tasks."""
DEGENERATE = (
    *("0", "1", "2", "-1", "0.5", "yes", "no", "True", "False", "None", "A", "B", "x", "[]", "{}", "[[0]]", "(", "."),
    *(
        "\\boxed{}",
        "\\boxed{0}",
        "\\boxed{1}",
        "(A)",
        "I don't know.",
        "I refuse to answer.",
        "The answer is correct.",
        "```python\npass\n```",
    ),
)
REPEATED = 3
"""Turns that repeat a degenerate text."""
COPIED_TASKS, COPIED_TURNS = 10, 6
FLOOD = " ".join(map(str, range(1001)))
"""Numbers that surround the right answer's numbers."""
ONE_ANSWER = "one answer to every task"
REFERENCE = "reference"
"""The field of a row that holds a right answer for a user's function, unless another one is named."""
LONGEST_FIELD = 200
"""Maximum characters of a row's field that goes into an answer with everything at once."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
DEFINED = re.compile(r"^\s*def (\w+)\(", re.MULTILINE)
BLOCK = "```python\n{}\n```"
RETURNED = re.compile(r"(\w+)\((.*)\) returned .*, expected (.+)")
ASSERTED = re.compile(r"assert (\w+)\((.*)\) == (.+?)(?: failed: .*)?$", re.MULTILINE)
PRINTED = re.compile(r"input:\n(.*?)\n(?:output:\n.*?\n)?expected:\n(.*?)(?:\n\n|\Z)", re.DOTALL)
Copy = Callable[[str, list[str]], str | None]
"""Returns the next turn from the reference answer and the environment's messages, or None to stop."""
Scripts = Mapping[str, Callable[[Task], TranscriptScore]]
"""Answer strategies by name."""


@dataclass(slots=True, kw_only=True)
class CaseCheck:
    """The cases of one check, and the cases that failed."""

    name: str
    tried: int = 0
    against: list[str] = field(default_factory=list)
    best: tuple[str, float] = ("", 0.0)
    """In a check of means, the script that earns most and its mean reward."""

    def add(self, holds: bool, case: str) -> None:
        """Count a case."""
        self.tried += 1
        if not holds:
            self.against.append(case)


def audit(
    env: EnvDefinition, tasks: Sequence[Task], references: Mapping[str, list[str]], *, until: float = math.inf
) -> list[CaseCheck]:
    """Try generic scripts on an environment. `references` has the turns of the reference answers by the keys of their tasks.

    If it is empty, only scripts that need none are tried. Raise `TimeoutError` at `until` on the monotonic clock.
    """
    tried = tasks[:AUDITED]
    known = [task for task in tried if task.key in references]
    earning = partial(_earning, limit=USUAL_CHANCE if env.chance is None else env.chance, until=until)
    copies = {"a table of the failed tests": _table} if env.runs_programs else COPIES
    copied: Scripts = {name: partial(_copied, references=references, copy=copy) for name, copy in copies.items()}
    findings = [
        _nothing(_until(tried, until)),
        _everything(env, _until(known, until), references),
        earning("answers copied from feedback", copied, known[:COPIED_TASKS]),
        _inside_calls(_until(known, until), references),
    ]
    if len(tried) >= FEWEST:
        answers = {_name_reference(task, references): references[task.key] for task in known[:OTHERS]}
        answers |= {repr(text): [text] * REPEATED for text in DEGENERATE}
        answers["everything at once"] = [_hedge(tried)] * REPEATED
        constant: Scripts = {name: partial(score_turns, turns=turns) for name, turns in answers.items()}
        pairs = zip(known, [*known[1:], *known[:1]], strict=True)
        other = {task.key: references[after.key] for task, after in pairs}
        neighbour: Scripts = {"the next task's answer": lambda task: score_turns(task, other[task.key])}
        echo: Scripts = {"the question": lambda task: score_turns(task, [last_user_text(task)])}
        findings.append(earning(ONE_ANSWER, constant, tried))
        findings.append(earning("reference answers of other tasks", neighbour, known))
        findings.append(earning("the question repeated", echo, [] if env.judges_form else tried))
    return findings


def _until(tasks: Sequence[Task], end: float) -> Iterator[Task]:
    """Yield the tasks. Raise `TimeoutError` at `end` on the monotonic clock."""
    for task in tasks:
        if time.monotonic() > end:
            raise TimeoutError("the audit takes too long")
        yield task


def find_own_reference(tasks: Sequence[Task], named: str | None = None) -> Callable[[Task], list[str]] | None:
    """Return the reference answers for a user's function: a field of the rows, by default `reference`, if any row has it.

    Raise `ValueError` if no row has the named field.
    """
    rows = [copy_row(task) for task in tasks]
    wanted = named or REFERENCE
    if any(wanted in row for row in rows):
        return partial(_field, name=wanted)
    if named is None:
        return None
    raise ValueError(f"no row has the field {named!r}; the first one has {', '.join(sorted(rows[0]))}")


def make_own_negatives(task: Task, *, reference: Callable[[Task], list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield named wrong answers for a user's function: a right number inside a longer one."""
    (right,) = reference(task)
    if NUMBER.fullmatch(right):
        yield "a digit before it", [f"1{right}"]
        yield "a digit after it", [f"{right}1"]


def _field(task: Task, *, name: str) -> list[str]:
    row = copy_row(task)
    if name not in row:
        raise ValueError(f"the row has no {name!r}")
    return [str(row[name])]


def find_references(tasks: Sequence[Task], reference: Callable[[Task], list[str]] | None) -> dict[str, list[str]]:
    """Return the reference answers of the tasks that have one, by key."""
    found: dict[str, list[str]] = {}
    if reference is None:
        return found
    for task in tasks:
        with suppress(ValueError):
            found[task.key] = reference(task)
    return found


def sample_tasks(env: BoundEnv, count: int, *, seed: int) -> list[Task]:
    """Return tasks from all parts of the rows, which may be sorted by their answers, or generated ones.

    They have no judge, which would cost a request for each answer.
    """
    if data := data_of(env):
        rows = list({each.task.key: each.task for one in data for each in read_first_rows(env, one).tasks}.values())
        tasks = rows[:: max(1, len(rows) // count)][:count]
    else:
        tasks = distinct_tasks(open_source(env, split="train", seed=seed), count)
    return [replace(one, env=replace(one.env, settings=replace(one.env.settings, judge=None))) for one in tasks]


def is_right(task: Task, scored: TranscriptScore) -> bool:
    """Return whether an answer counts as right. For a user's function, any reward above the usual chance does.

    A failure counts too, because no answer may cause one.
    """
    if task.env.settings.reward is not None and scored.reward is not None:
        return scored.reward > USUAL_CHANCE
    return scored.failure is not None or correctness(scored.score.parts, scored.reward) >= 1.0


def _nothing(tasks: Iterable[Task]) -> CaseCheck:
    finding = CaseCheck(name="empty answers earn nothing")
    for task in tasks:
        for turns in ([""], [""] * REPEATED):
            scored = score_turns(task, turns)
            paid = is_right(task, scored) or (task.env.settings.reward is not None and (scored.reward or 0.0) > 0.0)
            finding.add(not paid, f"{task.key}, {len(turns)} empty turns: {_describe_score(scored)}")
    return finding


def _inside_calls(tasks: Iterable[Task], references: Mapping[str, list[str]]) -> CaseCheck:
    """Put right answers into calls of an unknown tool, readable and unreadable. Answers that are calls are skipped."""
    finding = CaseCheck(name="right answers inside a call earn nothing")
    for task in tasks:
        if answer := remove_calls(references[task.key][-1]):
            call = turn_text(make_call_turn([("finish", {"text": answer})]), thinks=False)
            for name, turn in (("an unknown", call), ("an unreadable", call.replace("}}", "}"))):
                scored = score_turns(task, [turn])
                finding.add(not is_right(task, scored), f"{task.key}, inside {name} call: {_describe_score(scored)}")
    return finding


def _earning(name: str, scripts: Scripts, tasks: Sequence[Task], *, limit: float, until: float) -> CaseCheck:
    """Check that no script earns more than the limit in the mean over the tasks."""
    finding = CaseCheck(name=name)
    for script, play in scripts.items():
        mean = _mean(tasks, play, finding, until)
        finding.best = max(finding.best, (script, mean), key=lambda one: one[1])
        finding.add(mean <= limit, f"{script} earns {mean:.2f} on {len(tasks)} tasks, above {limit}")
    finding.name += f" (best {finding.best[1]:.2f} of {limit})"
    return finding


def _name_reference(task: Task, references: Mapping[str, list[str]]) -> str:
    return f"the reference answer of {task.key} ({references[task.key][-1]!r:.40})"


def _hedge(tasks: Sequence[Task]) -> str:
    """Return many answers at once: all numbers, the degenerate texts, and the short fields of all rows."""
    fields = [
        str(value)
        for task in tasks
        for value in task.spec.get(ROW, {}).values()
        if isinstance(value, str | float | int)
    ]
    return "\n".join((FLOOD, *DEGENERATE, *(text for text in dict.fromkeys(fields) if len(text) <= LONGEST_FIELD)))


def _everything(env: EnvDefinition, tasks: Iterable[Task], references: Mapping[str, list[str]]) -> CaseCheck:
    """Hide right answers: among all numbers, and among other reference answers.

    Skipped: answers that may define several functions, and tasks that check only the form.
    """
    finding = CaseCheck(name="right answers among many earn nothing")
    single = {key: turns[0] for key, turns in references.items() if len(turns) == 1}
    if env.runs_programs or env.judges_form:
        single = {}
    for task in tasks:
        turns = references[task.key]
        flooded = [_without_numbers(turn) for turn in turns]
        if flooded != turns and not is_right(task, score_turns(task, flooded)):
            own = " ".join(NUMBER.findall(" ".join(remove_calls(turn) for turn in turns)))
            scored = score_turns(task, [f"{FLOOD} {own} {FLOOD}\n{flooded[0]}", *flooded[1:]])
            finding.add(not is_right(task, scored), f"{task.key}, every number: {_describe_score(scored)}")
        if task.key in single:
            others = [text for text in dict.fromkeys(single.values()) if text != turns[0]][:OTHERS]
            listed = "\n".join((*others[: OTHERS // 2], turns[0], *others[OTHERS // 2 :]))
            if len(others) == OTHERS:
                scored = score_turns(task, [listed])
                finding.add(
                    not is_right(task, scored),
                    f"{task.key}, in the middle of {OTHERS} others: {_describe_score(scored)}",
                )
    return finding


def _copied(task: Task, *, references: Mapping[str, list[str]], copy: Copy) -> TranscriptScore:
    settings = replace(task.env.settings, max_turns=COPIED_TURNS, tool_turns=COPIED_TURNS)
    reference = "\n".join(references[task.key])
    return score_play(replace(task, env=replace(task.env, settings=settings)), partial(copy, reference))


def _last_line(_reference: str, replies: list[str]) -> str:
    return replies[-1].strip().rpartition("\n")[2] if replies else "0"


def _last_number(_reference: str, replies: list[str]) -> str:
    return (NUMBER.findall(replies[-1]) or ["0"])[-1] if replies else "0"


def _last_word(_reference: str, replies: list[str]) -> str:
    return (re.findall(r"[^\s:]+", replies[-1]) or ["0"])[-1].rstrip(".!?") if replies else "0"


COPIES: Mapping[str, Copy] = {
    "the whole reply": lambda _reference, replies: replies[-1] if replies else "0",
    "the last line": _last_line,
    "the last number": _last_number,
    "the last word": _last_word,
}


def _table(reference: str, replies: list[str]) -> str | None:
    """Write a program that looks up its results among the expected results of failed tests."""
    names, said = DEFINED.findall(reference), "\n".join(replies)
    calls = [found for rule in (RETURNED, ASSERTED) for found in rule.findall(said) if _literal(f"({found[1]},)")]
    printed = PRINTED.findall(said)
    if replies and not calls and not printed:
        return None
    rows = ", ".join(f"(({arguments},), {value})" for _, arguments, value in calls if _literal(value))
    body = f"TABLE = [{rows}]\ndef look_up(*given):\n    return next((value for key, value in TABLE if key == given), None)\n"
    body += "".join(f"{name} = look_up\ndef {name}(*given):\n    return look_up(*given)\n" for name in names)
    if not names:
        body = f"import sys\nprint({dict(printed)!r}.get(sys.stdin.read().strip(), ''))"
    return BLOCK.format(body)


def _literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _without_numbers(turn: str) -> str:
    """Return a turn with its calls, but with no number in its text."""
    kept = CALL_BLOCK.split(turn)[0] if CALL_BLOCK.search(turn) else turn
    return NUMBER.sub("", kept) + turn[len(kept) :]


def _mean(tasks: Sequence[Task], play: Callable[[Task], TranscriptScore], finding: CaseCheck, until: float) -> float:
    """Return the mean reward of tasks, or 0 if the first few earn nothing. A failure goes against the finding."""
    earned = 0.0
    for number, task in enumerate(_until(tasks, until)):
        if number == HOPELESS and earned == 0.0:
            return 0.0
        scored = play(task)
        if scored.failure is not None:
            finding.add(False, f"{task.key}: {scored.failure.message}"[:300])
        earned += scored.reward or 0.0
    return earned / len(tasks) if tasks else 0.0


def _describe_score(scored: TranscriptScore) -> str:
    described = scored.failure.message if scored.failure else f"earns {scored.reward:g}, {scored.score.detail}"
    return " ".join(described.split())[:200]
