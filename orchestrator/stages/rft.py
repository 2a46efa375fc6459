"""`rft`: rejection-sampling fine-tuning on the model's own right answers. Some are cut at a thinking budget.

It is semi-on-policy: the first model of the stage samples the answers once.
"""

from functools import partial
from pathlib import Path

from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.supervised import RftConfig
from temper.orchestrator.data.sampled_answers import RejectionSampledData, answer_lines, read_answers
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.stages.supervised_loop import (
    log_data,
    sample_once,
    sequence_batches,
    train_supervised,
)
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import load_tokenizer


async def run_rft(run: Run, config: RftConfig, instance: StageInstance) -> Path:
    """Sample if necessary, then train for `config.steps`. Return the last checkpoint."""
    mixture = await in_thread(instance.mixture, run.config, config.shares)
    path = await sample_once(run, config, mixture, instance=instance, lines=answer_lines, wanted="right answers")
    tokenizer, thinking = load_tokenizer(run.model_dir), run.config.rollout.thinking
    max_tokens = config.max_tokens or longest_sequence(run.model_dir)
    kept, counts = await in_thread(partial(read_answers, path, max_tokens=max_tokens))
    log_data(run, instance.name, str(path), counts, drawn=config.steps * config.batch_size)
    data = RejectionSampledData(
        kept,
        mixture,
        Renderer(tokenizer, thinking),
        ThinkingTags.find(tokenizer, closing=thinking.closing),
        thinking=config.thinking,
        thinking_config=thinking,
        batch_size=config.batch_size,
        max_tokens=max_tokens,
        seed=instance.seed(run.config.seed),
    )
    batch = sequence_batches(run, data.batch)
    return await train_supervised(run, instance.name, config, batch, sequences=config.batch_size)
