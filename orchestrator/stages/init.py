"""`init`: the first model of a run, from model.path or a fresh small hybrid."""

from functools import partial
from pathlib import Path

from temper.learner.models.fresh import make_model
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.run.checkpoint import begin, commit, discard_on_failure
from temper.orchestrator.run.declared_model import generation_file, write_declared
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.weights.own_files import own_files
from temper.rollout.weights.weight_files import require_complete


async def run_init(run: Run, settings: None, instance: StageInstance) -> Path:
    """Use or create the model and return its folder."""
    if (source := run.config.model.source) is not None:
        model = await in_thread(lambda: source.folder)
        await in_thread(require_complete, model)
        if not (run.config.model.ema or run.config.model.declares):
            return model
        copied = sum(path.stat().st_size for path in own_files(model, "*.safetensors")) if run.config.model.ema else 0
        directory = begin(run.folder.checkpoints(instance.name), 0, needed_bytes=copied)
        if run.config.model.ema:
            from temper.learner.engine.saved_state import write_averaged_model  # imports slowly

            with discard_on_failure(directory, needed_bytes=copied):
                await in_thread(partial(write_averaged_model, model, directory))
        else:
            await in_thread(partial(write_declared, model, directory, run.config.model.declared()))
        return await in_thread(commit, directory)
    directory = begin(run.folder.checkpoints(instance.name), 0, needed_bytes=0)
    count = await in_thread(partial(make_model, directory, run.config.model.fresh, seed=run.config.seed))
    target = await in_thread(partial(commit, directory, texts=generation_file(directory)))
    run.progress.note(f"{instance.name}: a fresh hybrid of {count:,} parameters")
    return target
