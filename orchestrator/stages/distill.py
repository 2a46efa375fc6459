"""`distill`: the model samples answers and learns from a teacher's probability of each token.

The loop is the one of `rl`. Without a baseline a single answer can be trained, so every group has an advantage.
"""

from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerBase

from temper.learner.models.fresh import padded_size
from temper.learner.models.shape import require_shareable
from temper.orchestrator.config.loop import DistillConfig
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.stage import StageInstance, StartCheck
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import require_complete


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
        require_complete(teacher)
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


def check_distill(config: DistillConfig, start: StartCheck) -> None:
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
