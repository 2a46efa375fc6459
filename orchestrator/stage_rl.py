"""`rl`: reinforcement learning on the mixture of environments. The loop itself is in `orchestrator/loop.py`."""

from pathlib import Path

from orchestrator.buffer import Buffer
from orchestrator.loop_stage import LoopStage
from orchestrator.run import Run


async def run_rl(run: Run) -> Path:
    """Train for `rl.steps`; returns the checkpoint of the last step."""
    config = run.config.rl
    buffer = Buffer(
        groups_per_step=config.groups_per_step,
        max_lag=config.max_lag,
        max_drops=config.max_drops,
        fewest=config.fewest_answers,
        overridden=config.loss.overrides,
    )
    return await LoopStage(run, config, buffer, shaping=config.shaping).run()
