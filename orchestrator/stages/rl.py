"""`rl`: reinforcement learning on the mixture of environments. The loop itself is in `orchestrator/loop/loop.py`."""

from functools import partial
from pathlib import Path

from temper.learner.losses.advantages import has_nonzero_advantage
from temper.orchestrator.config.fitting import fit_loop
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.shaping import earned_rewards, require_buffer_fits
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.stage import Role, Stage, StageInstance
from temper.rollout.trajectory import Group


async def run_rl(run: Run, config: RlConfig, instance: StageInstance) -> Path:
    signal = partial(teaches, kind=config.loss.advantage)
    stage = LoopStage(
        run,
        config,
        instance,
        max_replaced_groups=config.max_replaced_groups,
        has_advantage=signal,
        shaping=config.shaping,
    )
    return await stage.run()


def teaches(group: Group, *, kind: str) -> bool:
    """Return whether a group's rewards before shaping give a nonzero advantage of this kind, at any of its budgets.

    Groups are filtered before the length penalty: Yu et al., "DAPO", section 3.2, 2025.
    """
    outcomes_SG = zip(*(answer.outcomes[:-1] for answer in group.trajectories), strict=True)
    return any(
        has_nonzero_advantage(rewards, kind=kind) for rewards in (earned_rewards(group), *map(list, outcomes_SG))
    )


def _fits(config: RlConfig, run: RunConfig, name: str) -> None:
    require_buffer_fits(config.shaping, turn_tokens=run.rollout.limits.turn_tokens)
    fit_loop(config, run, name)


STAGE = Stage(
    name="rl",
    role=Role.TRAIN,
    settings=RlConfig,
    run=run_rl,
    first_ticket=0,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0 or bool(config.thinking.cuts),
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    fits=_fits,
    check=lambda config, start: start.loop_tasks(config),
)
