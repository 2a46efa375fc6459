"""`temper env check`: test an environment or a user's function on right and wrong answers, and on answers to no task."""

import logging
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gymnasium.utils.env_checker import check_env
from rich.table import Table

from temper.envs.all_tasks import generate_tasks
from temper.envs.catalog import make_drawing_env
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.task import Task
from temper.envs.reward_audit import CaseCheck, audit, is_right
from temper.envs.transcript import TranscriptScore, score_turns

LOG = logging.getLogger(__name__)
SHOWN = 5
CHECKED_TWICE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvReport:
    """The findings of an environment's self-test."""

    findings: list[CaseCheck]
    seconds: list[float]
    """Per scored script, without the start of child processes."""
    needs_reference: bool
    """Whether it fails without reference answers. A user's function is audited without them too."""

    @property
    def wrong(self) -> CaseCheck:
        """Whether wrong answers lose."""
        return self.findings[1]

    @property
    def repeated(self) -> CaseCheck:
        """Whether answers are worth the same when they are graded again."""
        return self.findings[2]

    @property
    def passed(self) -> bool:
        """Whether nothing went against a check, and reference answers were tried at all."""
        return not self.failed and (self.findings[0].tried > 0 or not self.needs_reference)

    @property
    def failed(self) -> list[CaseCheck]:
        return [finding for finding in self.findings if finding.against]

    def table(self, title: str) -> Table:
        """Format the findings as text, with the first cases of each failed check."""
        table = Table(title=title)
        for column in ("check", "tried", "failed", "for example"):
            table.add_column(column, overflow="fold")
        for finding in self.findings:
            shown = "\n".join(finding.against[:SHOWN])
            missing = self.needs_reference and not finding.tried
            mark = "red" if finding.against or missing else "green"
            table.add_row(finding.name, str(finding.tried), f"[{mark}]{len(finding.against)}[/]", shown)
        if self.seconds:
            median, slowest = 1e3 * statistics.median(self.seconds), 1e3 * max(self.seconds)
            table.add_row("time", str(len(self.seconds)), "", f"median {median:.2f} ms, slowest {slowest:.1f} ms")
        return table


def self_test(env: EnvDefinition, tasks: Sequence[Task]) -> EnvReport:
    """Check that reference passes and negatives fail, that scores and tasks repeat themselves, and gymnasium's rules.

    Then audit the reward with answers that ignore their task. Raise `ValueError` for an environment without reference answers
    or negatives, unless a user's function scores its tasks.
    """
    reference, rejected = CaseCheck(name="reference answers accepted"), CaseCheck(name="wrong answers rejected")
    repeated = CaseCheck(name="the same score twice")
    own = any(task.env.settings.reward is not None for task in tasks)
    if not own and (env.reference is None or env.negatives is None):
        raise ValueError(f"environment {env.id!r} has no reference answers or negatives to check with")
    seconds: list[float] = []
    references: dict[str, list[str]] = {}
    wrong, skipped = Counter[str](), 0
    for number, task in enumerate(tasks if env.reference is not None else ()):
        try:
            scripts = _scripts(env, task)
        except ValueError as error:
            LOG.warning("task %s: %s", task.key, error)
            skipped += 1
            continue
        references[task.key] = scripts[0][1]
        for place, (name, turns) in enumerate(scripts):
            right, first = place == 0, score_turns(task, turns)
            took = first.seconds
            finding = reference if right else rejected
            finding.add(first.failure is None and is_right(task, first) == right, _case(task, name, first))
            if not right:
                wrong[name] += 1
            if number < CHECKED_TWICE:
                again = score_turns(task, turns)
                same = (first.reward, first.score.parts) == (again.reward, again.score.parts)
                repeated.add(same, _case(task, name, again))
                took = again.seconds  # the first may have started a child process
            seconds.append(took)
    if env.reference is None:
        reference.name += " (none: name a field of the rows with --answer)"
    reference.name += f" ({skipped} tasks have none)" if skipped else ""
    rejected.name += _list_kinds(wrong)
    findings = [reference, rejected, repeated, _same_tasks(env), _gymnasium(env, tasks), *audit(env, tasks, references)]
    return EnvReport(findings=findings, seconds=seconds, needs_reference=not own)


def _scripts(env: EnvDefinition, task: Task) -> list[tuple[str, list[str]]]:
    """Return the named turns to try: the reference answer, then wrong ones."""
    assert env.reference is not None
    return [("reference", env.reference(task)), *(env.negatives(task) if env.negatives else ())]


def _list_kinds(wrong: Counter[str]) -> str:
    kinds = ", ".join(name for name, _ in wrong.most_common(SHOWN))
    more = f" and {len(wrong) - SHOWN} more kinds" if len(wrong) > SHOWN else ""
    return f" ({kinds}{more})" if kinds else ""


def _case(task: Task, name: str, scored: TranscriptScore) -> str:
    outcome = scored.score.outcome
    message = scored.failure or (f"earns {scored.reward:g}," if outcome is None else outcome.value)
    return f"{task.key}, {name}: {message} {scored.score.detail}"[:300]


def _same_tasks(env: EnvDefinition) -> CaseCheck:
    finding = CaseCheck(name="the same tasks from the same seed")
    if env.generate is not None:
        for seed in range(CHECKED_TWICE):
            one, two = (generate_tasks(env, 1, seed=seed) for _ in range(2))
            finding.add(one == two, f"seed {seed}")
    return finding


def _gymnasium(env: EnvDefinition, tasks: Sequence[Task]) -> CaseCheck:
    """Run the check of gymnasium. An environment without generated tasks gets the tasks of the file."""
    finding = CaseCheck(name="gymnasium's check_env")
    made = make_drawing_env(env, (lambda rng: rng.choice(tasks)) if env.generate is None else None)
    try:
        check_env(made, skip_render_check=True)
        finding.add(True, "")
    except Exception as error:
        finding.add(False, f"{type(error).__name__}: {error}"[:300])
    return finding
