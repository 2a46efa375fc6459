"""`distill`: the model samples answers and learns from a teacher's probability of each token.

The loop is the one of `rl`. Without a baseline a single answer can be trained, so every group has an advantage.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import transformers
from transformers import PreTrainedTokenizerBase

from temper.envs.core.setting import immutable
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import padded_size
from temper.learner.models.shape import require_shareable
from temper.orchestrator.config.fitting import fit_loop
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.loop.config import Band, BandsConfig
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, StageInstance, StartCheck
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import require_whole


@dataclass(frozen=True, kw_only=True)
class DistillConfig(LoopConfig):
    """On-policy distillation: a teacher scores each token that the model samples. Rewards are only measured."""

    stage: ClassVar[str] = "distill"

    teacher: ModelSource | None = immutable(None)
    """A model with the same tokenizer vocabulary, a directory or a name on the hub. It stays frozen in memory with the model.
    """
    loss: LossConfig = field(default_factory=lambda: LossConfig(objective="distill", kl="k1"))
    """As for rl. `kl` is the estimate of the metric train/kl, in nats a token."""
    bands: BandsConfig = field(default_factory=lambda: BandsConfig(nonzero_advantage=Band()))  # rewards are not trained
    """Bands of step metrics. A metric outside raises an alarm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.objective != "distill":
            raise ValueError(f"distill.loss.objective={self.loss.objective} must be distill")
        loss, usual = self.loss, LossConfig()
        for name, value, without in (
            ("advantage", loss.advantage, usual.advantage),
            ("malformed_thinking", loss.malformed_thinking, usual.malformed_thinking),
            ("invalid_call", loss.invalid_call, usual.invalid_call),
            ("kl_coefficient", loss.kl_coefficient, usual.kl_coefficient),
        ):
            if value != without:
                raise ValueError(
                    f"distill.loss.{name}={value} has no effect, since a teacher scores the tokens; remove it"
                )

    def teacher_dir(self) -> Path:
        """Return the folder of the teacher. Raise `ValueError` without one."""
        if self.teacher is None:
            raise ValueError(
                "the stage distill needs distill.teacher: a model directory with the model's own tokenizer"
            )
        return self.teacher.folder


async def run_distill(run: Run, config: DistillConfig, instance: StageInstance) -> Path:
    return await LoopStage(run, config, instance, teacher=config.teacher_dir()).run()


def known_ids(model_dir: Path) -> int:
    """Return the number of ids that a model knows. Its tokenizer may have fewer."""
    config = transformers.AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    count: int = config.get_text_config(decoder=True).vocab_size
    return count


def check_teacher(
    teacher: Path, *, student: str, tokenizer: PreTrainedTokenizerBase, ids: int, shared_prompts: bool
) -> None:
    """Raise `FileNotFoundError` or `ValueError` if a teacher cannot score a student's tokens.

    `student` names it in messages. It may sample any of `ids`, which may be more than its tokenizer has.
    """
    try:
        require_whole(teacher)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"distill.teacher={teacher} is not a whole model directory: {error}") from error
    ours, theirs = tokenizer.get_vocab(), load_tokenizer(teacher).get_vocab()
    if ours != theirs:
        differing = sorted(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))[:3]
        raise ValueError(
            f"the teacher {teacher} ({len(theirs)} tokens) and the student {student} ({len(ours)} tokens) have different "
            f"vocabularies, for example at {differing}; use a teacher of the student's family, with the same tokenizer"
        )
    if known_ids(teacher) < ids:
        raise ValueError(
            f"the teacher {teacher} knows {known_ids(teacher)} ids and the student {student} can sample {ids}; use a teacher "
            f"with at least as many (vocab_size in config.json)"
        )
    if shared_prompts:
        require_shareable(transformers.AutoConfig.from_pretrained(teacher, trust_remote_code=False))


def _check(config: DistillConfig, start: StartCheck) -> None:
    source = start.config.model.source
    student = None if source is None else source.folder
    check_teacher(
        config.teacher_dir(),
        student="that the run makes" if student is None else str(student),
        tokenizer=start.tokenizer,
        ids=padded_size(start.tokenizer) if student is None else known_ids(student),
        shared_prompts=start.config.learner.shared_prompts,
    )
    start.loop_tasks(config)


def _require_teacher(config: DistillConfig) -> None:
    """Raise `ValueError` or `FileNotFoundError` for a missing teacher. The start of a run checks one on the hub."""
    if config.teacher is None or not config.teacher.on_hub:
        config.teacher_dir()


STAGE = Stage(
    name="distill",
    role=Role.TRAIN,
    settings=DistillConfig,
    run=run_distill,
    first_ticket=3 * TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0,
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    models=lambda config: {"teacher": config.teacher},
    fits=fit_loop,
    requires=_require_teacher,
    check=_check,
)
