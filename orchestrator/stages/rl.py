"""The stage `rl`, which `run_rl.py` runs."""

from temper.orchestrator.config.fitting import fit_loop
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.config import require_buffer_fits
from temper.orchestrator.stages.stage import Role, Stage, defer_import


def _fits(config: RlConfig, run: RunConfig, name: str) -> None:
    if config.thinking.nested_budgets and run.rollout.thinking.announce:
        raise ValueError(
            f"{name}.thinking.nested_budgets={config.thinking.nested_budgets} with rollout.thinking.announce=true: a budget in "
            f"the prompt would change the reasoning before it; leave one of them out"
        )
    comparing = [env for env, one in run.envs.items() if one.judge is not None and one.judge.compare]
    if config.thinking.nested_budgets and comparing:
        raise ValueError(
            f"{name}.thinking.nested_budgets={config.thinking.nested_budgets} with envs.{comparing[0]}.judge.compare=true: "
            f"forced answers have no comparison; leave one of them out"
        )
    require_buffer_fits(config.shaping, turn_tokens=run.rollout.limits.turn_tokens)
    fit_loop(config, run, name)


STAGE = Stage(
    name="rl",
    role=Role.TRAIN,
    settings=RlConfig,
    run=defer_import("temper.orchestrator.stages.run_rl", "run_rl"),
    first_ticket=0,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0 or bool(config.thinking.nested_budgets),
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    fits=_fits,
    check=lambda config, start: start.loop_tasks(config),
)
