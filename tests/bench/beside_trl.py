"""The loop against TRL's GRPO: the same model, prompts, lengths, updates and hardware, in turns.

`python -m bench.beside_trl`, a part of `make bench`.

The sides alternate, and one is idle while the other makes some steps: TRL, the loop at lag 0 and at lag 1, TRL again. A
ratio divides the loop's samples a second by TRL's rate before and after. Both compute in float32. TRL and the loop at lag 0
use all cores. At lag 1 the engine has one core and the learner has the others. Both learn from random rewards and make one
update a step. The learner keeps activations, and so does TRL, unless `--recompute` restores its default. TRL generates
with transformers, its default without an engine.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import psutil
from bench.loop import run_steps
from bench.processes import started
from bench.trl_side import Part, TrlSide, TrlWork, trl_is_there
from rich.console import Console
from rich.table import Table
from support.fresh_qwen3 import fresh_qwen3

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.sandbox.sandbox import SandboxConfig
from temper.envs.source import GeneratedSource
from temper.learner.batches.builder import BatchBuilder
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepReport
from temper.rollout.config import EpisodeLimits, RolloutConfig
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.engine_process import cpu_s
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import Group, WeightVersion

ANSWERS, ANSWER_TOKENS = 64, 64
"""Answers of a step, and the token limit of one."""
LENGTH = 1024
LEARNING_RATE = 1e-4
SKIPPED = 2
"""Uncounted steps at the start of a part: the pipeline fills."""
ROLLOUT = RolloutConfig(
    engine=EngineConfig(max_model_len=LENGTH),
    limits=EpisodeLimits(turn_tokens=ANSWER_TOKENS, total_tokens=LENGTH, turns=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind of work: answers to a prompt, the least characters of its prompts, and the steps of a part."""

    name: str
    group_size: int
    characters: int
    steps: int


class LoopSide:
    """Our side: an engine and a learner that last from part to part."""

    def __init__(
        self,
        pool: RolloutPool,
        learner: TrainerGroup,
        mixture: Mixture,
        rl: RlConfig,
        builder: BatchBuilder,
        *,
        steps: int,
    ) -> None:
        self._pool = pool
        self._learner = learner
        self._mixture = mixture
        self._rl = rl
        self._builder = builder
        self._steps = steps
        self._version = VersionCell(WeightVersion(step=0))
        self._draw = random.Random(0)

    @classmethod
    @asynccontextmanager
    async def started(cls, model: Path, work: Work, mixture: Mixture, threads: int) -> AsyncIterator["LoopSide"]:
        rl = RlConfig(
            groups_per_step=ANSWERS // work.group_size,
            group_size=work.group_size,
            optim=OptimConfig(learning_rate=LEARNING_RATE, warmup_steps=0),
        )
        learner = LearnerConfig(
            threads=threads,
            threads_during_generation=max(1, threads - 1),
            micro_batch_tokens=8192,
            transport="shared_memory",
        )
        config = RunConfig(
            name="bench",
            envs={"math": EnvConfig()},
            rollout=ROLLOUT,
            learner=learner,
            sandbox=SandboxConfig(min_level=0),  # nothing is run there
        )
        async with started(config, model) as made:
            await made.learner.load(model, optim=rl.optim, loss=rl.loss, total_steps=10**6)
            builder = BatchBuilder(config=learner, pad_id=pad_id(load_tokenizer(model)))
            yield cls(made.pool, made.learner, mixture, rl, builder, steps=work.steps)

    async def steps(self, lag: int) -> Part:
        """Make the steps of a part, after those that fill the pipeline."""
        config = self._builder.config
        await self._learner.use_threads(config.threads_during_generation if lag else config.threads)
        marks: list[tuple[float, float]] = []
        groups: list[Group] = []

        async def mark(report: StepReport) -> None:
            marks.append((time.monotonic(), self._cpu_s()))
            if report.step > SKIPPED:
                groups.extend(report.groups)

        await run_steps(
            self._pool,
            self._learner,
            self._mixture,
            self._rl,
            self._builder,
            buffer=Buffer(groups_per_step=self._rl.groups_per_step, max_lag=lag, max_replaced_groups=0),
            version=self._version,
            steps=SKIPPED + self._steps,
            on_step=mark,
            on_group=self._with_rewards,
        )
        (began, used), (ended, used_since) = marks[SKIPPED - 1], marks[-1]
        answers = [trajectory for group in groups for trajectory in group.trajectories]
        return Part(
            seconds=ended - began,
            cpu_s=used_since - used,
            answers=len(answers),
            tokens=sum(answer.sampled_tokens for answer in answers),
        )

    def _with_rewards(self, group: Group) -> Group:
        """Return the group with random rewards like TRL's: a fresh model's answers are all wrong."""
        return replace(group, trajectories=tuple(replace(t, reward=self._draw.random()) for t in group.trajectories))

    def _cpu_s(self) -> float:
        """Return the CPU seconds of this process, its actors and all their child processes."""
        processes = [*self._pool.processes(), *self._learner.processes()]
        pids = [now.process.place.pid for now in processes if now.process.place is not None]
        children = [child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        return time.process_time() + cpu_s([*pids, *children])


LAGS = (0, 1)
TRL_PROMPTS = 256
CORES = os.cpu_count() or 1
MODELS = ("hybrid", "attention")
"""The fresh hybrid of the demo, and a Qwen 3 of 4 M parameters, whose prefixes can be cached on a CPU."""


WORKS = (
    Work(name="short", group_size=8, characters=0, steps=6),
    Work(name="long", group_size=16, characters=500, steps=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSums:
    """Tasks of the math environment, with made-up notes in front of the question."""

    short: GeneratedSource
    characters: int

    def task(self, index: int) -> Task:
        """Return the task at `index`."""
        task, draw = self.short.task(index), random.Random(index)
        notes = ""
        while len(notes) < self.characters:
            notes += f"Shelf {draw.randrange(100)} has {draw.randrange(1000)} boxes. "
        (message,) = task.messages
        return replace(task, messages=({**message, "content": notes + message["content"]},))


async def bench_beside_trl(
    model: Path, work: Work, *, repeats: int, threads: int, recompute: bool
) -> dict[str, list[float]]:
    """Return figures of a work by name, one entry a repeat. The first parts of both sides are not counted."""
    mixture = mixture_of(work)
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        trl = await TrlSide.start(trl_work(model, work, mixture, threads, recompute).store(Path(folder) / "work.json"))
        try:
            await trl.steps(SKIPPED)
            async with LoopSide.started(model, work, mixture, threads) as loop:
                await loop.steps(0)
                before = await trl.steps(work.steps)
                for _ in range(repeats):
                    ours = {lag: await loop.steps(lag) for lag in LAGS}
                    after = await trl.steps(work.steps)
                    measured = figures_of(before, after, ours)
                    print(f"{work.name}: {line_of(measured)}", file=sys.stderr)
                    for name, value in measured.items():
                        figures.setdefault(f"trl/{work.name}/{name}", []).append(value)
                    before = after
        finally:
            await trl.close()
    return figures


def figures_of(before: Part, after: Part, ours: dict[int, Part]) -> dict[str, float]:
    """Return samples a second of both sides, their ratio, the ratio of CPU seconds a sample, and tokens an answer."""
    answers = before.answers + after.answers
    trl, trl_cpu_s = answers / (before.seconds + after.seconds), (before.cpu_s + after.cpu_s) / answers
    figures = {"trl_samples_per_s": trl, "trl_answer_tokens": (before.tokens + after.tokens) / answers}
    for lag, part in ours.items():
        speed = part.answers / part.seconds
        figures |= {
            f"lag_{lag}_samples_per_s": speed,
            f"lag_{lag}_answer_tokens": part.tokens / part.answers,
            f"lag_{lag}_times_trl": speed / trl,
            f"lag_{lag}_trl_cpu_over_ours": trl_cpu_s * part.answers / part.cpu_s,
        }
    return figures


def line_of(figures: dict[str, float]) -> str:
    """Return the ratios of a repeat as one progress line."""
    lags = (f"{figures[f'lag_{lag}_times_trl']:.2f} times at lag {lag}" for lag in LAGS)
    return f"TRL {figures['trl_samples_per_s']:.1f} samples/s, the loop {' and '.join(lags)}"


def mixture_of(work: Work) -> Mixture:
    """Return the tasks of a work."""
    sums = GeneratedSource(bind("math", EnvConfig()), split="train", seed=1)
    return Mixture({"math": LongSums(short=sums, characters=work.characters)}, {"math": 1.0}, seed=1)


def trl_work(model: Path, work: Work, mixture: Mixture, threads: int, recompute: bool) -> TrlWork:
    """Return the same prompts for TRL, whose tokenizer encodes them to the same ids."""
    renderer = Renderer(load_tokenizer(model))
    ids = [renderer.prompt_ids(mixture.task(mixture.draw())) for _ in range(TRL_PROMPTS)]
    prompts = tuple(map(renderer.decode, ids))
    assert [renderer.encode(prompt) for prompt in prompts] == ids
    return TrlWork(
        model=str(model),
        prompts=prompts,
        group_size=work.group_size,
        answers=ANSWERS,
        answer_tokens=ANSWER_TOKENS,
        learning_rate=LEARNING_RATE,
        threads=threads,
        recompute=recompute,
    )


async def bench_all(
    models: Sequence[str], works: Sequence[Work], *, repeats: int, threads: int, recompute: bool
) -> dict[str, list[float]]:
    """Measure each work with each model. Return the figures, one entry a repeat."""
    figures: dict[str, list[float]] = {}
    for name in models:
        with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
            model = Path(folder) / "model"
            if name == "hybrid":
                make_model(model, FreshModelConfig(), seed=1)
            else:
                fresh_qwen3(model, width=256, layers=4)
            for work in works:
                print(f"{name} model, {work.name} prompts: {repeats} repeats", file=sys.stderr)
                measured = await bench_beside_trl(model, work, repeats=repeats, threads=threads, recompute=recompute)
                figures |= {key.replace("trl/", f"trl/{name}/", 1): values for key, values in measured.items()}
    return figures


def main() -> None:
    """Print a table on standard error and one JSON object on standard output. Report a missing TRL."""
    names = {work.name: work for work in WORKS}
    parser = argparse.ArgumentParser(prog="python -m bench.beside_trl", description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--works", nargs="*", choices=list(names), default=list(names))
    parser.add_argument("--repeats", type=int, default=3, help="parts of each side (default: 3)")
    parser.add_argument(
        "--threads",
        type=int,
        default=CORES,
        help="of TRL, and of the learner where no engine works (default: all cores)",
    )
    parser.add_argument(
        "--recompute", action="store_true", help="let TRL compute activations again, which is its default"
    )
    given = parser.parse_args()
    console = Console(stderr=True)
    if not trl_is_there():
        console.print("not measured beside TRL, which is not installed: requirements/dev.txt has it (make setup)")
        return
    works = [names[name] for name in given.works]
    figures = asyncio.run(
        bench_all(given.models, works, repeats=given.repeats, threads=given.threads, recompute=given.recompute)
    )
    table = Table(
        "figure", "least", "median", "most", title=f"beside TRL, {given.threads} threads, {given.repeats} repeats"
    )
    for name, values in figures.items():
        table.add_row(name, *(f"{value:,.3g}" for value in (min(values), median(values), max(values))))
    console.print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
