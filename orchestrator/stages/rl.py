"""`rl`: reinforcement learning on the mixture of environments. The loop itself is in `orchestrator/loop/loop.py`."""

from functools import partial
from pathlib import Path

from temper.learner.losses.advantages import has_nonzero_advantage
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.shaping import earned_at_budgets
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.stage import StageInstance
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
