"""`dpo`: direct preference optimisation on pairs of answers, from a file or from the model itself.

Semi-on-policy without a file: the answers are sampled once, from the model that the stage starts with.
"""

from pathlib import Path

from learner.batch import TrainBatch
from learner.pairs import make_pair_batch
from orchestrator.answer_sampling import sample_once
from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.preferences import DpoConfig, Preferences, pair_lines, read_pairs, read_preferences
from orchestrator.run import Run
from orchestrator.supervised import train_supervised
from rollout.renderer import Renderer, load_tokenizer, pad_id
from rollout.thought import ThoughtTags

STAGE = "dpo"


async def run_dpo(run: Run, config: DpoConfig, name: str) -> Path:
    """Sample where that is needed and not done, then train for `config.steps`; returns the checkpoint of the last step."""
    learner = run.config.learner
    preferences = await _own(run, config, name) if config.data is None else _rows(run, config, name, Path(config.data))
    pad = pad_id(load_tokenizer(run.model_dir))

    def batch(step: int) -> TrainBatch:
        return make_pair_batch(
            preferences.batch(step),
            ranks=learner.ranks,
            micro_batch_tokens=learner.micro_batch_tokens,
            pad_id=pad,
            shared_prompts=learner.shared_prompts,
        )

    return await train_supervised(
        run,
        stage=name,
        optim=config.optim,
        steps=config.steps,
        checkpoint_every=config.checkpoint_every,
        batch=batch,
        loss=config.loss,
    )


async def _own(run: Run, config: DpoConfig, name: str) -> Preferences:
    """Pairs of the model's own answers."""
    wanted = "pairs of a right and a wrong answer"
    mixture = run.mixture(name, config.shares)
    path = await sample_once(run, config, mixture, stage=STAGE, name=name, lines=pair_lines, wanted=wanted)
    pairs = read_pairs(path, max_tokens=run.config.rollout.limits.total_tokens)
    return Preferences(len(pairs), pairs.__getitem__, batch_size=config.batch_size, seed=run.seed(name))


def _rows(run: Run, config: DpoConfig, name: str, path: Path) -> Preferences:
    """Pairs of a file, written as ids when their turn comes."""
    thought = run.config.rollout.thought
    tokenizer = load_tokenizer(run.model_dir)
    tags = ThoughtTags.find(tokenizer, closing=thought.closing)
    rows, skipped = read_preferences(path, on_error=config.on_error, thoughts=tags is not None)
    if skipped:
        run.progress.note(f"{name}: {skipped} malformed rows of {path} were skipped")
    writer, max_tokens = (
        DialogueWriter(Renderer(tokenizer, thought), tags, thought),
        run.config.rollout.limits.total_tokens,
    )
    return Preferences(
        len(rows),
        lambda number: rows[number].pair(writer, max_tokens=max_tokens),
        batch_size=config.batch_size,
        seed=run.seed(name),
    )
