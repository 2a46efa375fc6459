"""`rl`: reinforcement learning on the mixture of environments. The loop itself is in `orchestrator/loop.py`."""

from functools import partial
from pathlib import Path

from learner.losses.batch_advantages import has_signal
from orchestrator.buffer import Buffer
from orchestrator.settings.loop import RlConfig
from orchestrator.stages.loop_stage import LoopStage
from orchestrator.stages.session import Run


async def run_rl(run: Run, config: RlConfig, name: str) -> Path:
    """Train for `config.steps` as the instance `name`; returns the checkpoint of the last step."""
    buffer = Buffer(
        groups_per_step=config.groups_per_step,
        max_lag=config.max_lag,
        max_drops=config.max_drops,
        fewest=config.fewest_answers,
        overridden=config.loss.overrides,
        signal=partial(has_signal, kind=config.loss.advantage),
    )
    return await LoopStage(run, config, name, buffer, shaping=config.shaping).run()
