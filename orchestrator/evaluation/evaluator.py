"""Answers to held-out tasks, first with unlimited and then with limited thinking."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic
from typing import TypeVar

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Mode, Thinking
from temper.envs.source import GeneratedSource, distinct_tasks, open_source
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.evaluation.budget_curve import (
    BudgetPoint,
    Condition,
    at_budget,
    budget_conditions,
    budget_curve,
    median_free_thinking,
    with_thinking,
)
from temper.orchestrator.evaluation.scores import describe_stale, drop_stale, of_env
from temper.orchestrator.loop.deadline import Deadline, in_thread, together, within
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.session.run import Run
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.stored_turns import read_group
from temper.rollout.trajectory import Group, Ticket, WeightVersion

T = TypeVar("T")
FREE = Condition(thinking=UNLIMITED)
GENERATED = 64
"""Tasks of an environment that generates them, if all are requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One more pass over the tasks of environments with thinking, for all of these conditions at once."""

    name: str
    conditions: dict[str, list[Condition]]

    def tasks(self, plain: Iterable[Task], answered: Collection[tuple[str, Thinking]] = ()) -> list[Task]:
        """Return the tasks in the modes of this pass, without modes in which a task, by its label, is `answered`.

        Conditions with the same mode share its answers.
        """
        modes = {env: dict.fromkeys(one.thinking for one in conditions) for env, conditions in self.conditions.items()}
        return [
            replace(task, thinking=thinking)
            for task in plain
            for thinking in modes.get(task.env.name, ())
            if (task.label, thinking) not in answered
        ]


def heldout_tasks(config: RunConfig, tasks: int | None) -> list[Task]:
    """Return the tasks of an evaluation: the first `tasks` distinct held-out ones of each environment, in the order of names.

    An environment may have fewer. None is as in `EvalConfig.tasks`. Raise `ValueError` for all rows of streamed data.
    """
    found: list[Task] = []
    for name, env in sorted(config.environments.items()):
        source = open_source(env, split="heldout", seed=config.seed)
        wanted = GENERATED if tasks is None and isinstance(source, GeneratedSource) else tasks
        if wanted is None and source.size is None:
            raise ValueError(
                f"eval.tasks=null needs the number of held-out rows, which streamed envs.{name}.data does not have; set "
                f"envs.{name}.eval_data, or a number of tasks"
            )
        found += distinct_tasks(source, wanted)
    return found


class Evaluator:
    """Answers tasks on the engines. Every pass has a separate deadline and separate tickets, so other seeds."""

    def __init__(
        self,
        run: Run,
        config: EvalConfig,
        pool: RolloutPool,
        *,
        label: str,
        first_ticket: int,
        version: WeightVersion | None,
    ) -> None:
        """All tokens of a score must come from the weights `version`; None if the server has no versions."""
        self.label = label
        self.stale: Counter[str] = Counter()
        """Answers with a token of other weights, by environment."""
        self._version = version
        self._run = run
        self._config = config
        self._pool = pool
        self._numbers = count(first_ticket)
        self._watch = FailureWatch(config.max_failures, setting="eval.max_failures")

    async def tasks(self) -> list[Task]:
        """Create the held-out tasks. Note environments with fewer tasks than requested.

        The budgets are nested in unlimited thinking, unless a prompt announces its budget or an episode shares it.
        """
        run, wanted = self._run, self._config.tasks
        making = in_thread(heldout_tasks, run.config, wanted)
        tasks = await run.stop.wait_or(self._in_time(making, waiting_for="held-out tasks to be created"))
        for env in sorted(run.config.envs):
            found = sum(task.env.name == env for task in tasks)
            if wanted is not None and found < wanted:
                run.progress.note(f"eval-{self.label}: {env} has {found} of {wanted} requested held-out tasks")
        thinking, budgets = run.config.rollout.thinking, tuple(sorted(set(self._config.budgets)))
        if not budgets or thinking.announce or thinking.scope == "episode":
            return tasks
        nested = Thinking(mode=Mode.UNLIMITED, nested_budgets=budgets)
        return [replace(task, thinking=nested) if _may_nest(task) else task for task in tasks]

    async def answers(self, tasks: list[Task]) -> list[Group]:
        """Return the groups of answers to the tasks.

        Raise `StuckError` without a new group within the deadline, which a restart of a worker extends, and `TooManyFailures`
        for too many failed episodes.
        """
        run, config = self._run, self._config
        tickets = [
            Ticket(number=next(self._numbers), task=task, admitted=run.version, sampling=config.sampling)
            for task in tasks
        ]
        last = 0.0
        async with run.supervision.evaluating(self.label, tasks=len(tasks), samples=config.answers_per_task) as view:

            async def answered(ticket: Ticket) -> Group:
                nonlocal last
                group = await self._watch.on(read_group(self._pool.run_group(ticket, config.answers_per_task)))
                view.add(group)
                last = monotonic()
                return group

            answering = together(map(answered, tickets))
            waiting = self._in_time(answering, waiting_for="held-out answers", last_progress=lambda: last)
            groups = await run.stop.wait_or(waiting)
        self._watch.conclude()
        return groups

    def drop_stale(self, groups: list[Group]) -> list[Group]:
        """Return the groups without the answers of stale environments, which are noted and counted."""
        if self._version is None:
            return groups
        sound, stale = drop_stale(groups, self._version)
        self.stale += stale
        for env, answers in stale.items():
            self._run.progress.note(f"eval-{self.label}: {describe_stale(env, answers, groups, self._version)}")
        return sound

    async def _in_time(
        self, work: Awaitable[T], *, waiting_for: str, last_progress: Callable[[], float] = lambda: 0.0
    ) -> T:
        limit = Deadline(seconds=self._config.timeout_s, setting="eval.timeout_s")
        return await within(
            limit,
            work,
            stage=f"eval of {self.label}",
            waiting_for=waiting_for,
            last_progress=last_progress,
            last_restart_at=self._run.engines.last_restart_at,
        )


def _may_nest(task: Task) -> bool:
    """Return whether budgets can be nested in the task's reasoning. Comparing judges see whole answers only."""
    return task.thinking == UNLIMITED and not task.env.settings.compares


async def thinking_passes(
    run: Run, config: EvalConfig, evaluator: Evaluator, tasks: list[Task], free: list[Group]
) -> tuple[list[Group], dict[str, list[BudgetPoint]]]:
    """Answer in further passes. Return their groups, and the curve of every environment with thinking.

    Budgets that were nested in unlimited thinking need no pass, except for tasks whose unlimited answers failed: reasoning
    that takes too long may fit into a budget.
    """
    scope = run.config.rollout.thinking.scope
    thinking = sorted({task.env.name for task in tasks if task.thinking.mode is Mode.UNLIMITED})
    medians = {env: median_free_thinking(of_env(free, env), scope=scope) for env in thinking}
    known = {env: value for env, value in medians.items() if value is not None}
    for env in sorted(set(run.config.envs) - set(known)):
        why = "no answer has a score" if env in medians else "its tasks are answered without reasoning"
        run.progress.note(f"eval-{evaluator.label}: no curve for {env}: {why}")
    passes = further_passes(config, known) if known else []
    not_nested = {
        one.ticket.task.env.name for one in free if any(len(t.turns) > 1 or t.parents for t in one.trajectories)
    }
    one_turn = [one for one in free if one.ticket.task.env.name not in not_nested and not one.failed]
    nested = [at_budget(group, budget) for group in one_turn for budget in group.ticket.task.thinking.nested_budgets]
    answered = {(one.ticket.task.label, one.ticket.task.thinking) for one in nested}
    further = list[Group]()
    for one in passes:
        if left := one.tasks(tasks, answered):
            run.progress.note(f"eval-{evaluator.label}: {one.name}")
            further += await evaluator.answers(left)
    sound = evaluator.drop_stale([*nested, *further])
    ways = {(one.ticket.task.env.name, one.ticket.task.thinking) for one in nested}
    conditions = {
        env: [FREE, *(replace(c, nested=(env, c.thinking) in ways) for one in passes for c in one.conditions[env])]
        for env in known
    }
    unlimited = [with_thinking(one, UNLIMITED) if one.ticket.task.thinking.nested_budgets else one for one in free]
    groups = [*unlimited, *sound]
    return further, {env: budget_curve(of_env(groups, env), conditions[env], scope=scope) for env in known}


def further_passes(config: EvalConfig, medians: dict[str, float]) -> list[Pass]:
    """Return the passes besides unlimited thinking. `medians` has each environment's free reasoning in tokens."""
    passes = []
    if config.no_thinking:
        passes.append(Pass(name="thinking off", conditions={env: [Condition(thinking=OFF)] for env in medians}))
    if config.low_effort:
        passes.append(Pass(name="low effort", conditions={env: [Condition(thinking=LOW_EFFORT)] for env in medians}))
    if config.budgets or config.budget_shares:
        conditions = {
            env: budget_conditions(config.budgets, config.budget_shares, free_thinking=value)
            for env, value in medians.items()
        }
        budgets = {env: ", ".join(str(one.thinking.budget) for one in asked) for env, asked in conditions.items()}
        listed = "; ".join(f"{env} {numbers}" for env, numbers in budgets.items())
        passes.append(Pass(name=f"budgets in tokens: {listed}", conditions=conditions))
    return passes
