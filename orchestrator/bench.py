"""`bench`: what the engines can do, and what the loop makes of it, as ratios measured in one process and minute."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from learner.batch import Sequence, make_batch
from learner.config import LossConfig
from learner.fresh_model import make_model
from orchestrator.bench_loop import bench_loop
from orchestrator.bench_rollout import bench_rollout, same_length
from orchestrator.cluster import Fleet, LearnerGroup, start_ray, stop_ray
from orchestrator.config import Config
from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.dialogues import Demonstrations
from orchestrator.mixture import Mixture
from rollout.manifest import read_weights
from rollout.renderer import Renderer, load_tokenizer, pad_id
from rollout.thought import ThoughtTags
from rollout.trajectory import WeightVersion

REPEATS = 3


async def bench(config: Config, mixture: Mixture) -> dict[str, float]:
    """Measure on the configuration's fresh model; returns the figures that `print_bench` shows."""
    folder = Path(tempfile.mkdtemp(prefix="temper-bench-"))
    try:
        model = folder / "model"
        parameters = make_model(model, config.model.fresh, seed=config.seed)
        start_ray(slots=config.rollout.workers + config.learner.ranks, min_sandbox_level=config.sandbox.min_level)
        began = time.monotonic()
        closing = len(ThoughtTags(load_tokenizer(model)).cut(()))
        rollout = same_length(config, closing)
        fleet = await Fleet.start(rollout, model_dir=model, version=WeightVersion(step=0), seed=config.seed)
        engine_start = time.monotonic() - began
        learner = await LearnerGroup.start(config.learner)
        await learner.load(model, optim=config.rl.optim, loss=LossConfig(objective="nll"), total_steps=100)
        figures = {"model/parameters": float(parameters), "engine/start_s": engine_start}
        figures |= await bench_rollout(fleet, mixture, config)
        figures |= await _learning(learner, model, mixture, config)
        figures |= await _pushing(fleet, learner)
        await learner.load(model, optim=config.rl.optim, loss=config.rl.loss, total_steps=100)
        await learner.use_threads(config.learner.threads_beside)
        pad = pad_id(load_tokenizer(model))
        figures |= await bench_loop(fleet, learner, mixture, config, pad_id=pad, version=REPEATS)
        await learner.close()
        await fleet.close()
        return figures
    finally:
        stop_ray()
        shutil.rmtree(folder, ignore_errors=True)


async def _learning(learner: LearnerGroup, model: Path, mixture: Mixture, config: Config) -> dict[str, float]:
    """Trained sequences' tokens a second, forward, backward and update."""
    tokenizer = load_tokenizer(model)
    writer = DialogueWriter(Renderer(tokenizer), None, config.rollout.thought)
    source = Demonstrations(mixture)
    rows = [writer.ids(source.dialogue(number)) for number in range(config.sft.batch_size)]
    batch = make_batch(
        [Sequence.supervised(ids=ids, trained_T=trained) for ids, trained in rows],
        ranks=config.learner.ranks,
        micro_batch_tokens=config.learner.micro_batch_tokens,
        pad_id=pad_id(tokenizer),
    )
    best = 0.0
    for _ in range(REPEATS):
        began = time.monotonic()
        await learner.step(batch)
        best = max(best, batch.tokens / (time.monotonic() - began))
    return {"learner/tokens_per_s": best}


async def _pushing(fleet: Fleet, learner: LearnerGroup) -> dict[str, float]:
    """Seconds of a weight push, and how often the same bytes could have been copied in memory meanwhile."""
    publish, load, copy, nbytes = [], [], [], 0
    for version in range(1, REPEATS + 1):
        began = time.monotonic()
        manifest = await learner.publish(WeightVersion(step=version))
        published = time.monotonic()
        await fleet.load_weights(manifest)
        publish.append(published - began)
        load.append(time.monotonic() - published)
        tensors = [tensor for _, tensor in read_weights(manifest)]
        copy.append(_seconds(lambda tensors=tensors: [tensor.clone() for tensor in tensors]))  # type: ignore[misc]
        nbytes = manifest.nbytes
    return {
        "push/bytes": float(nbytes),
        "push/publish_s": min(publish),
        "push/load_s": min(load),
        "push/times_memory_copy": (min(publish) + min(load)) / min(copy),
    }


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def print_bench(figures: dict[str, float]) -> None:
    """One JSON object on standard output, and a table for people on standard error."""
    table = Table("figure", "value", title=f"bench, {torch.get_num_threads()} threads")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4g}")
    Console(stderr=True).print(table)
    print(json.dumps(figures))
