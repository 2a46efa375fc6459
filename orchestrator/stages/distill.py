"""`distill`: the model samples, and learns from how likely a teacher finds each of its tokens.

The loop is that of `rl`. There is no baseline, so a lone answer teaches as well, and every group has a signal.
"""

from pathlib import Path

from learner.models.fresh import padded_size
from orchestrator.buffer import Buffer
from orchestrator.reporting.stage_figures import Curve, StageFigures
from orchestrator.session.run import Run
from orchestrator.settings.distillation import DistillConfig, check_teacher, known_ids
from orchestrator.settings.fitting import fit_loop
from orchestrator.stages.loop_stage import LoopStage
from orchestrator.stages.stage import TICKETS, Role, Stage, StageInstance, StartCheck


async def run_distill(run: Run, config: DistillConfig, instance: StageInstance) -> Path:
    """Train for `config.steps`; returns the checkpoint of the last step."""
    buffer = Buffer(
        groups_per_step=config.groups_per_step,
        max_lag=config.max_lag,
        max_drops=0,
        fewest=config.fewest_answers,
        next_ticket=instance.first_ticket,
    )
    return await LoopStage(run, config, instance, buffer, teacher=config.teacher_dir()).run()


def _check(config: DistillConfig, start: StartCheck) -> None:
    """Raise `FileNotFoundError` or `ValueError` where the teacher can't judge the run's model, or data is malformed."""
    path = start.config.model.path
    student = None if path is None else Path(path).resolve()
    check_teacher(
        config.teacher_dir(),
        student="that the run makes" if student is None else str(student),
        tokenizer=start.tokenizer,
        ids=padded_size(start.tokenizer) if student is None else known_ids(student),
        shared_prompts=start.config.learner.shared_prompts,
    )
    start.training_tasks(config.shares)


STAGE = Stage(
    name="distill",
    role=Role.TRAIN,
    settings=DistillConfig,
    run=run_distill,
    first_ticket=3 * TICKETS,
    plays=lambda config: True,
    limits_thoughts=lambda config: config.thinking.budget > 0,
    leaves_thoughts_out=lambda config: config.thinking.no_thought > 0,
    files=lambda config: {"teacher": config.teacher},
    fits=fit_loop,
    requires=lambda config: config.teacher_dir(),
    check=_check,
    figures=StageFigures(
        rewards="Mean reward, which is only watched: the teacher decides what is learnt. The bold line is a running mean.",
        curves=(
            Curve(
                title="Distance from the teacher",
                note="Mean of log pi - log pi_teacher over the sampled tokens, in nats: the reverse divergence of a token.",
                metrics={"train/kl": "divergence"},
            ),
        ),
    ),
)
