"""An audit of rewards with answers that ignore their task. The scripts fit any environment that has reference answers."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from temper.envs.core.definition import USUAL_CHANCE, EnvDefinition
from temper.envs.core.errors import failure_of
from temper.envs.core.task import Task
from temper.envs.core.turn_text import CALL_BLOCK, call_message, turn_text, without_calls
from temper.envs.env_episode import EnvEpisode
from temper.envs.transcript import TranscriptScore, parse_own_turn, score_turns
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
        "The answer is correct.",
        "```python\npass\n```",
    ),
)
REPEATED = 3
"""Turns that repeat a degenerate text."""
COPIED_TASKS, COPIED_TURNS = 10, 6
FLOOD = " ".join(map(str, range(1001)))
"""Numbers that surround the right answer's numbers."""
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

    def add(self, holds: bool, case: str) -> None:
        """Count a case."""
        self.tried += 1
        if not holds:
            self.against.append(case)


def audit(env: EnvDefinition, tasks: Sequence[Task], references: Mapping[str, list[str]]) -> list[CaseCheck]:
    """Try generic scripts on an environment. `references` has the turns of the reference answers by the keys of their tasks."""
    tried = list(tasks[:AUDITED])
    known = [task for task in tried if task.key in references]
    earning = partial(_earning, limit=USUAL_CHANCE if env.chance is None else env.chance)
    copies = {"a table of the failed tests": _table} if env.runs_programs else COPIES
    copied: Scripts = {name: partial(_copied, references=references, copy=copy) for name, copy in copies.items()}
    findings = [
        _nothing(tried),
        _everything(env, known, references),
        earning("answers copied from feedback", copied, known[:COPIED_TASKS]),
        _inside_calls(known, references),
    ]
    if len(tried) >= FEWEST:
        answers = {f"reference answer of {task.key}": references[task.key] for task in known[:OTHERS]}
        answers |= {repr(text): [text] * REPEATED for text in DEGENERATE}
        constant: Scripts = {name: partial(score_turns, turns=turns) for name, turns in answers.items()}
        pairs = zip(known, [*known[1:], *known[:1]], strict=True)
        other = {task.key: references[after.key] for task, after in pairs}
        neighbour: Scripts = {"the next task's answer": lambda task: score_turns(task, other[task.key])}
        findings.append(earning("one answer to every task", constant, tried))
        findings.append(earning("reference answers of other tasks", neighbour, known))
    return findings


def _nothing(tasks: Sequence[Task]) -> CaseCheck:
    finding = CaseCheck(name="empty answers earn nothing")
    for task in tasks:
        for turns in ([""], [""] * REPEATED):
            scored = score_turns(task, turns)
            finding.add(not _right(scored), f"{task.key}, {len(turns)} empty turns: {_describe_score(scored)}")
    return finding


def _inside_calls(tasks: Sequence[Task], references: Mapping[str, list[str]]) -> CaseCheck:
    """Put right answers into the call of an unknown tool, readable and unreadable. Skipped: answers that are calls."""
    finding = CaseCheck(name="right answers inside a call earn nothing")
    for task in tasks:
        if answer := without_calls(references[task.key][-1]):
            call = turn_text({"content": "", "tool_calls": [call_message("finish", {"text": answer})]}, thinks=False)
            for name, turn in (("an unknown", call), ("an unreadable", call.replace("}}", "}"))):
                scored = score_turns(task, [turn])
                finding.add(not _right(scored), f"{task.key}, inside {name} call: {_describe_score(scored)}")
    return finding


def _earning(name: str, scripts: Scripts, tasks: Sequence[Task], *, limit: float) -> CaseCheck:
    """Check that no script earns more than the limit in the mean over the tasks."""
    finding, best = CaseCheck(name=name), 0.0
    for script, play in scripts.items():
        mean = _mean(tasks, play, finding)
        best = max(best, mean)
        finding.add(mean <= limit, f"{script} earns {mean:.2f} on {len(tasks)} tasks, above {limit}")
    finding.name += f" (best {best:.2f} of {limit})"
    return finding


def _everything(env: EnvDefinition, tasks: Sequence[Task], references: Mapping[str, list[str]]) -> CaseCheck:
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
        if flooded != turns and not _right(score_turns(task, flooded)):
            own = " ".join(NUMBER.findall(" ".join(without_calls(turn) for turn in turns)))
            scored = score_turns(task, [f"{FLOOD} {own} {FLOOD}\n{flooded[0]}", *flooded[1:]])
            finding.add(not _right(scored), f"{task.key}, every number: {_describe_score(scored)}")
        if task.key in single:
            others = [text for text in dict.fromkeys(single.values()) if text != turns[0]][:OTHERS]
            listed = "\n".join((*others[: OTHERS // 2], turns[0], *others[OTHERS // 2 :]))
            if len(others) == OTHERS:
                scored = score_turns(task, [listed])
                finding.add(
                    not _right(scored), f"{task.key}, in the middle of {OTHERS} others: {_describe_score(scored)}"
                )
    return finding


def _copied(task: Task, *, references: Mapping[str, list[str]], copy: Copy) -> TranscriptScore:
    settings = replace(task.env.settings, max_turns=COPIED_TURNS, tool_turns=COPIED_TURNS)
    episode = EnvEpisode(replace(task, env=replace(task.env, settings=settings)))
    reference, replies = "\n".join(references[task.key]), list[str]()
    try:
        episode.begin()
        while (text := copy(reference, replies)) is not None:
            result = episode.step(parse_own_turn(text))
            if result.done:
                return TranscriptScore(reward=result.reward, score=result.score)
            replies += [str(message["content"]) for message in result.messages]
        result = episode.truncate("for it had nothing to copy")
        return TranscriptScore(reward=result.reward, score=result.score)
    except Exception as error:  # any error of an environment
        return TranscriptScore(reward=None, failure=failure_of(error))
    finally:
        episode.close()


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


def _mean(tasks: Sequence[Task], play: Callable[[Task], TranscriptScore], finding: CaseCheck) -> float:
    """Return the mean reward of tasks, or 0 if the first few earn nothing. A failure goes against the finding."""
    earned = 0.0
    for number, task in enumerate(tasks):
        if number == HOPELESS and earned == 0.0:
            return 0.0
        scored = play(task)
        if scored.failure is not None:
            finding.add(False, f"{task.key}: {scored.failure.message}"[:300])
        earned += scored.reward or 0.0
    return earned / len(tasks) if tasks else 0.0


def _right(scored: TranscriptScore) -> bool:
    return scored.failure is not None or correctness(scored.score.parts, scored.reward) >= 1.0


def _describe_score(scored: TranscriptScore) -> str:
    return str(scored.failure or scored.score.detail)[:200]
