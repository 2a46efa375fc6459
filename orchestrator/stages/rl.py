"""`rl`: reinforcement learning on the mixture of environments. The loop itself is in `orchestrator/loop/loop.py`."""

from functools import partial
from pathlib import Path

from temper.learner.losses.advantages import has_nonzero_advantage
from temper.orchestrator.config.fitting import fit_loop
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.config import require_buffer_fits
from temper.orchestrator.loop.shaping import earned_at_budgets
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.stage import Role, Stage, StageInstance
from temper.rollout.trajectory import Group


async def run_rl(run: Run, config: RlConfig, instance: StageInstance) -> Path:
    stage = LoopStage(
        run,
        config,
        instance,
        max_replaced_groups=config.max_replaced_groups,
        has_advantage=partial(has_advantage, kind=config.loss.advantage),
        shaping=config.shaping,
    )
    return await stage.run()


def has_advantage(group: Group, *, kind: str) -> bool:
    """Return whether a group's rewards before shaping give a nonzero advantage of this kind, at any of its budgets.

    Groups are filtered before the length penalty: Yu et al., "DAPO", section 3.2, 2025.
    """
    return any(has_nonzero_advantage(rewards_G, kind=kind) for rewards_G in earned_at_budgets(group))


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
    run=run_rl,
    first_ticket=0,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0 or bool(config.thinking.nested_budgets),
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    fits=_fits,
    check=lambda config, start: start.loop_tasks(config),
)
