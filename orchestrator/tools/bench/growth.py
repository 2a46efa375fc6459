"""`bench-growth`: how the cost of a step grows, each of its parts alone: with the number of answers, of rollout workers, with
the model's size and with the length of the context. A figure each, and their numbers as JSON.
"""

import json
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import FreshModelConfig, make_model
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.tools.bench.loop import batch_of
from temper.orchestrator.tools.bench.processes import started
from temper.orchestrator.tools.bench.rollout import sample_groups
from temper.orchestrator.tools.inspect.report.figures import COLOURS, STYLE, svg_file
from temper.rollout.episodes.worker import RolloutConfig
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.token_arrays import tokens_of
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import WeightVersion

PROMPTS = (4, 8, 16, 32)
WORKERS = (1, 2)
WIDTHS = (64, 128, 256, 512)
CONTEXTS = (128, 512, 1024, 2048)
ROWS, ANSWER = 8, 32
"""Sequences of a context length, and the tokens that are sampled after each."""
REPEATS = 2
BYTES = 256
"""Ids below this one are plain bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of each part of a step by itself, the best of some repeats; `x` is what grows."""

    x: float
    generate_s: float
    learn_s: float
    push_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What grows, by its name and unit, and what it costs."""

    name: str
    unit: str
    costs: list[Cost]


async def bench_growth(config: Config, mixture: Mixture, say: Callable[[str], None]) -> list[Growth]:
    """Measure all four. `say` is told what comes next; engines start seven times."""
    folder = Path(tempfile.mkdtemp(prefix="temper-bench-"))
    try:
        bench = _Bench(config, mixture, folder)
        say("answers in a step")
        answers = await bench.answers()
        say("rollout workers")
        workers = await bench.workers()
        say("model size")
        sizes = await bench.sizes()
        say("context length")
        contexts = await bench.contexts()
        return [answers, workers, sizes, contexts]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Bench:
    def __init__(self, config: Config, mixture: Mixture, folder: Path) -> None:
        self._config = config
        self._rl = config.section(RlConfig)
        self._mixture = mixture
        self._folder = folder
        self._tickets = 0

    async def answers(self) -> Growth:
        model, _ = self._model(self._config.model.fresh)
        size = self._rl.group_size
        async with self._started(self._config.rollout, model) as (pool, learner):
            costs = [await self._cost(pool, learner, model, x=n * size, groups=n) for n in PROMPTS]
        return Growth(name="answers in a step", unit=f"prompts x {size}", costs=costs)

    async def workers(self) -> Growth:
        model, _ = self._model(self._config.model.fresh)
        costs = []
        for count in WORKERS:
            rollout = replace(self._config.rollout, workers=count)
            async with self._started(rollout, model) as (pool, learner):
                costs.append(await self._cost(pool, learner, model, x=count, groups=PROMPTS[-1]))
        return Growth(
            name="rollout workers",
            unit=f"{PROMPTS[-1] * self._rl.group_size} answers",
            costs=costs,
        )

    async def sizes(self) -> Growth:
        costs = []
        for width in WIDTHS:
            shape = replace(
                self._config.model.fresh,
                hidden_size=width,
                intermediate_size=4 * width,
                attention_heads=max(1, width // 32),
                key_value_heads=max(1, width // 64),
                mamba_heads=2 * width // 32,
            )
            model, parameters = self._model(shape)
            async with self._started(self._config.rollout, model) as (pool, learner):
                costs.append(await self._cost(pool, learner, model, x=parameters, groups=PROMPTS[0]))
        return Growth(name="model size", unit="parameters", costs=costs)

    async def contexts(self) -> Growth:
        longest = CONTEXTS[-1] + ANSWER
        model, _ = self._model(replace(self._config.model.fresh, max_positions=longest))
        rollout = replace(self._config.rollout, engine=replace(self._config.rollout.engine, max_model_len=longest))
        builder, costs = self._builder(model), []
        async with self._started(rollout, model) as (pool, learner):
            for length in CONTEXTS:
                sequences = _random_sequences(length)
                prompts = [tokens_of(sequence.ids[:length]) for sequence in sequences]
                times = []
                for _ in range(REPEATS):
                    began = time.monotonic()
                    await pool.sample_bare(prompts, max_tokens=ANSWER)
                    generated = time.monotonic()
                    await learner.step(builder.of_samples(sequences))
                    times.append((generated - began, time.monotonic() - generated, await _push(pool, learner)))
                costs.append(_best(float(length), times))
        return Growth(name="context length", unit=f"prompt tokens, {ROWS} sequences", costs=costs)

    async def _cost(self, pool: RolloutPool, learner: TrainerGroup, model: Path, *, x: float, groups: int) -> Cost:
        builder, times = self._builder(model), []
        for _ in range(REPEATS):
            tasks = [self._mixture.task(self._mixture.draw()) for _ in range(groups)]
            self._tickets += groups
            began = time.monotonic()
            sampled = await sample_groups(pool, tasks, answers=self._rl.group_size, first=self._tickets)
            generated = time.monotonic()
            await learner.step(batch_of(sampled, self._rl, builder))
            times.append((generated - began, time.monotonic() - generated, await _push(pool, learner)))
        return _best(x, times)

    def _builder(self, model: Path) -> BatchBuilder:
        return BatchBuilder(config=self._config.learner, pad_id=pad_id(load_tokenizer(model)))

    def _model(self, shape: FreshModelConfig) -> tuple[Path, int]:
        model = self._folder / "model"
        return model, make_model(model, shape, seed=self._config.seed)

    @asynccontextmanager
    async def _started(self, rollout: RolloutConfig, model: Path) -> AsyncIterator[tuple[RolloutPool, TrainerGroup]]:
        config, loss = replace(self._config, rollout=rollout), LossConfig(objective="nll")
        async with started(config, model) as made:
            await made.learner.load(model, optim=OptimConfig(), loss=loss, total_steps=1000)
            await made.learner.use_threads(config.learner.threads)
            yield made.pool, made.learner


async def _push(pool: RolloutPool, learner: TrainerGroup) -> float:
    began = time.monotonic()
    await pool.load_weights(await learner.publish(WeightVersion(step=1)))
    return time.monotonic() - began


def _best(x: float, times: Sequence[tuple[float, float, float]]) -> Cost:
    generate, learn, push = (min(column) for column in zip(*times, strict=True))
    return Cost(x=x, generate_s=generate, learn_s=learn, push_s=push)


def _random_sequences(length: int) -> list[TrainingSample]:
    draw = random.Random(length)
    trained_T = [False] * length + [True] * ANSWER
    rows = [[draw.randrange(BYTES) for _ in trained_T] for _ in range(ROWS)]
    return [TrainingSample.supervised(ids=ids, trained_T=trained_T) for ids in rows]


def growth_svg(growths: Sequence[Growth]) -> str:
    """Draw a panel for each: seconds of the three parts against what grows, both axes logarithmic."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.6, 2.9), layout="constrained")
        for axes, growth in zip(figure.subplots(1, len(growths)), growths, strict=True):
            for part, colour in zip(("generate", "learn", "push"), COLOURS, strict=False):
                values = [asdict(cost)[f"{part}_s"] for cost in growth.costs]
                axes.plot([cost.x for cost in growth.costs], values, marker="o", color=colour, label=part)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(growth.name)
            axes.set_xlabel(growth.unit)
        figure.axes[0].set_ylabel("seconds")
        figure.axes[0].legend()
        return svg_file(figure)


def write_growth(growths: Sequence[Growth], folder: Path) -> None:
    """Write `growth.svg` and `growth.json` into the folder; print the numbers as JSON, and as a table for people."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(growth) for growth in growths])
    (folder / "growth.json").write_text(text, encoding="ascii")
    (folder / "growth.svg").write_text(growth_svg(growths), encoding="utf-8")
    table = Table("what grows", "to", "generate, s", "learn, s", "push, s")
    for growth in growths:
        for cost in growth.costs:
            seconds = (f"{s:.3f}" for s in (cost.generate_s, cost.learn_s, cost.push_s))
            table.add_row(growth.name, f"{cost.x:,.0f}", *seconds)
    Console(stderr=True).print(table)
    print(text)
