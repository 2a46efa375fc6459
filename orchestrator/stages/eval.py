"""`eval`: answers to held-out tasks of each environment, sampled by `eval.sampling`.

The first pass has unlimited thinking and gives the results of the environments. Further passes answer the same tasks in the
thinking modes of `eval.budgets`, `budget_shares`, `no_thinking` and `low_effort`. Their points make a curve.

A measure without a scored answer is NaN, in files null, never 0. Accuracy is over scored answers. The result also has the
number of requested answers, and the accuracy with failed answers as wrong. If a token came from other weights, the
environment's score is stale: null too.
"""

import time
from pathlib import Path

from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.fitting import check_thinking
from temper.orchestrator.evaluation.budget_curve import BudgetPoint
from temper.orchestrator.evaluation.evaluator import Evaluator, thinking_passes
from temper.orchestrator.evaluation.record import read_evaluations
from temper.orchestrator.evaluation.scores import asked_of_engines, env_result, of_env, result_json
from temper.orchestrator.run.folder import write_json
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.trajectory import Group


async def run_eval(run: Run, config: EvalConfig, instance: StageInstance) -> None:
    run.tracker.artifact(await evaluate(run, config, instance))


async def evaluate(run: Run, config: EvalConfig, instance: StageInstance) -> Path:
    """Evaluate the newest model. Write trajectories and `eval/<label>.json`, and return the latter.

    The label is the name of the instance without `eval-`.
    """
    state, label = run.folder.state(), instance.name.removeprefix("eval-")
    if config.has_curve:  # the command line may add passes that no listed stage has
        check_thinking(
            run.model_dir, run.config.rollout.thinking, limited=config.limits_thinking, left_out=config.no_thinking
        )
    pool = await run.engines.serve(run.model_dir, who=f"eval of {label}")
    evaluator = Evaluator(run, config, pool, label=label, first_ticket=instance.first_ticket, version=run.version)
    began = time.monotonic()
    run.progress.stage(f"eval-{label}", 0)
    tasks = await evaluator.tasks()
    if config.has_curve:
        run.progress.note(f"eval-{label}: unlimited thinking")
    answered = await evaluator.answers(tasks)
    sound, envs = evaluator.drop_stale(answered), sorted(run.config.envs)
    by_env = {env: env_result(of_env(sound, env), asked=config.tasks, stale=evaluator.stale[env]) for env in envs}
    further, curves = await thinking_passes(run, config, evaluator, tasks, sound) if config.has_curve else ([], {})
    result = result_json(
        label=label,
        order=next_order(run.folder.evals, label),
        model=state.model,
        version=run.version,
        samples=config.answers_per_task,
        sampling=config.sampling,
        seconds=time.monotonic() - began,
        asked=asked_of_engines(run.config),
        groups=sound,
        envs=by_env,
    )
    if curves:
        episodes = [one for group in (*answered, *further) for one in (*group.trajectories, *group.failed)]
        result["sampled_tokens"] = sum(one.all_sampled_tokens for one in episodes)
        result["curve"] = {env: [point.as_json() for point in points] for env, points in curves.items()}
        await _show(run, f"eval-{label}", "-thinking", further)
    await _show(run, f"eval-{label}", "", answered)
    path = run.folder.evals / f"{label}.json"
    write_json(path, result)
    metrics = {f"{env}/{name}": value for env, values in by_env.items() for name, value in values.items()}
    run.log(f"eval-{label}", 0, metrics | curve_metrics(curves))
    return path


async def _show(run: Run, name: str, part: str, groups: list[Group]) -> None:
    path = run.folder.trajectories / f"{name}{part}.jsonl"
    await run.write_trajectories(path, groups, name=name, step=0)


def next_order(folder: Path, label: str) -> int:
    """Return the order of an evaluation of the newest model, after all other models."""
    return 1 + max((other.order for other in read_evaluations(folder) if other.label != label), default=-1)


def curve_metrics(curves: dict[str, list[BudgetPoint]]) -> dict[str, float]:
    """Return the metrics of every point. Lengths are per episode."""
    return {
        f"{env}/thinking/{point.label}/{name}": value
        for env, points in curves.items()
        for point in points
        for name, value in (
            ("accuracy", point.accuracy),
            ("well_formed", point.well_formed),
            ("thinking_tokens", point.thinking_tokens),
            ("answer_tokens", point.answer_tokens),
        )
    }
