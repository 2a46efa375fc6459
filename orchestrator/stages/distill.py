"""`distill`: the model samples, and learns from how likely a teacher finds each of its tokens.

The loop is that of `rl`. There is no baseline, so a lone answer teaches as well, and every group has a signal.
"""

from pathlib import Path

from orchestrator.buffer import Buffer
from orchestrator.settings.distillation import DistillConfig
from orchestrator.stages.loop_stage import LoopStage
from orchestrator.stages.session import Run

TICKETS = 3 * 10**9
"""Tickets of this stage start here, so that their seeds are those of no other stage."""


async def run_distill(run: Run, config: DistillConfig, name: str) -> Path:
    """Train for `config.steps` as the instance `name`; returns the checkpoint of the last step."""
    buffer = Buffer(
        groups_per_step=config.groups_per_step,
        max_lag=config.max_lag,
        max_drops=0,
        fewest=config.fewest_answers,
        next_ticket=TICKETS,
    )
    return await LoopStage(run, config, name, buffer, teacher=config.teacher_dir()).run()
