"""Evaluations between the steps of a stage, on the engines that it samples with.

One begins after a push of weights that are due. The next push waits for its end, so all answers come from these weights,
which each token records. The learner is idle if an evaluation takes longer than the next step's sampling and learning. At lag
0 an evaluation has the engines alone and the stage's groups wait, so training does not depend on it. With lag they share the
engines. Tickets and seeds are the same each time, so two evaluations differ only by their weights.
"""

import asyncio
from functools import partial
from time import monotonic
from typing import Protocol

from temper.envs.core.task import Task
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.evaluation.budget_curve import mean
from temper.orchestrator.evaluation.evaluator import heldout_tasks
from temper.orchestrator.evaluation.scores import (
    asked_of_engines,
    describe_stale,
    drop_stale,
    env_result,
    of_env,
    result_json,
)
from temper.orchestrator.loop.deadline import in_thread, together
from temper.orchestrator.loop.interfaces import Evaluations
from temper.orchestrator.loop.loop import END_S
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.run.checkpoint import place
from temper.orchestrator.run.folder import evaluations_of, write_json
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.run_supervision import EvaluationView
from temper.rollout.stored_turns import read_group
from temper.rollout.trajectory import Group, Ticket, WeightVersion

FIRST_TICKET = 10**10
"""Above the tickets of all stages."""


class Answers(Protocol):
    """All rollout workers as one."""

    async def run_group(self, ticket: Ticket, samples: int) -> Group: ...


def make_step_evaluations(run: Run, config: LoopConfig, pool: Answers, *, stage: str) -> Evaluations:
    """Return the evaluations of an instance's settings."""
    return StepEvaluations(run, config, pool, stage=stage) if config.eval_every else Evaluations()


def is_of_evaluation(ticket: int) -> bool:
    """Return whether a ticket belongs to an evaluation between steps."""
    return ticket >= FIRST_TICKET


class StepEvaluations(Evaluations):
    """Evaluations every so many steps. Each writes a row of metrics, a file for comparisons, and trajectories."""

    def __init__(self, run: Run, config: LoopConfig, pool: Answers, *, stage: str) -> None:
        """`stage` is the name of the instance."""
        self._run = run
        self._config = config
        self._pool = pool
        self._stage = stage
        self._name = evaluations_of(stage)
        self._watch = FailureWatch(config.max_failures, setting=f"{stage}.max_failures")
        self._tasks: list[Task] = []
        self._sign = 0.0
        self._running: asyncio.Task[None] | None = None

    def begin(self, step: int, version: WeightVersion) -> None:
        """Evaluate every `eval_every` steps, before the first and after the last.

        If a resumed stage lacks the evaluation of an earlier step, evaluate its first weights instead.
        """
        due = step % self._config.eval_every == 0 or step == self._config.steps
        if due or self._running is None:
            self._running = asyncio.create_task(self._evaluate(step, version, due=due))

    async def wait_until_free(self) -> None:
        if self._config.max_lag == 0:
            await self.wait_finished()

    async def wait_finished(self) -> None:
        if self._running is None:
            return
        await asyncio.wait({self._running})  # cancelling the waiter does not cancel it
        self._running.result()

    def last_progress(self) -> float:
        return self._sign

    async def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=END_S)
            if self._running.done() and not self._running.cancelled():
                self._running.exception()  # another error ended the stage first

    async def _evaluate(self, step: int, version: WeightVersion, *, due: bool) -> None:
        """Evaluate once, unless that was done before a restart."""
        run, config, began = self._run, self._config, monotonic()
        wanted = step if due else step - step % config.eval_every
        if any(wanted <= row.step <= step for row in await in_thread(run.rows, self._name)):
            return
        if not due:
            run.progress.note(
                f"{self._stage} step {step}: evaluates in place of step {wanted}, which has no evaluation"
            )
        self._sign = monotonic()
        self._tasks = self._tasks or await in_thread(heldout_tasks, run.config, config.eval_tasks)
        name, samples = f"{self._stage} step {step}", config.eval_answers_per_task
        async with run.supervision.evaluating(name, tasks=len(self._tasks), samples=samples) as view:
            asking = (self._answered(n, task, version, view) for n, task in enumerate(self._tasks))
            groups = await together(asking)
        await self._report(step, version, groups, seconds=monotonic() - began)

    async def _answered(self, number: int, task: Task, version: WeightVersion, view: EvaluationView) -> Group:
        config = self._config
        ticket = Ticket(number=FIRST_TICKET + number, task=task, admitted=version, sampling=config.eval_sampling)
        group = await self._watch.on(read_group(self._pool.run_group(ticket, config.eval_answers_per_task)))
        self._sign = monotonic()
        view.add(group)
        return group

    async def _report(self, step: int, version: WeightVersion, groups: list[Group], *, seconds: float) -> None:
        """Write the results. The row of metrics comes last and marks the evaluation as done."""
        run, label = self._run, f"{self._stage} step {step}"
        sound, stale = drop_stale(groups, version)
        for env, answers in stale.items():
            run.progress.note(f"{label}: {describe_stale(env, answers, groups, version)}")
        asked = self._config.eval_tasks
        envs = {env: env_result(of_env(sound, env), asked=asked, stale=stale[env]) for env in sorted(run.config.envs)}
        folder = run.folder
        result = result_json(
            label=label,
            order=step,
            model=str(place(folder.checkpoints(self._stage), step).relative_to(folder.root)),
            version=version,
            samples=self._config.eval_answers_per_task,
            sampling=self._config.eval_sampling,
            seconds=seconds,
            asked=asked_of_engines(run.config),
            groups=sound,
            envs=envs,
        )
        evaluation = folder.step_evaluation(self._stage, step)
        await in_thread(partial(write_json, evaluation, result))
        run.tracker.artifact(evaluation)
        path = folder.trajectory_file(self._name, step)
        leave = run.trainer.reserved_bytes(path.parent)
        await run.write_trajectories(path, groups, name=self._name, step=step, leave=leave)
        run.metrics.append(self._name, step, _metrics(envs, version, seconds))
        shown = ", ".join(f"{env} {_share(result['avg_at_k'])}" for env, result in envs.items())
        run.progress.note(f"{label}: held out: {shown} (version {version.step}, {seconds:.0f} s)")


def _metrics(envs: dict[str, dict[str, float]], version: WeightVersion, seconds: float) -> dict[str, float]:
    """Return the row of an evaluation. The mean over environments is NaN if one has no score."""
    flat = {f"{env}/{name}": value for env, values in envs.items() for name, value in values.items()}
    over_all = mean([values["avg_at_k"] for values in envs.values()])
    return {"avg_at_k": over_all, "version": float(version.step), "seconds": seconds} | flat


def _share(value: float) -> str:
    return "without a score" if value != value else f"{value:.3f}"
