"""What the driver costs beside many engines: the loop at the traffic of 64 engines, on recorded answers.

`python -m temper.orchestrator.tools.bench.driver` runs the loop with buffer, ledger, metrics, trajectory files and
supervision, a pool of
64 workers that live in two processes and play answers at 3,000 tokens/s each, and two ranks that read their shares and
learn nothing. The answers are made up, or with `--recording` those of a run, given to other tasks. What is measured is the
driver's process alone: its CPU time, all threads included, and its own memory. Where two processes can't play that fast the
CPU time for a token counts, times the tokens of 64 engines.
"""

import argparse
import asyncio
import io
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from temper.learner.batches.builder import BatchBuilder
from temper.learner.models.fresh import make_model
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.cluster.crowded_actors import crowded_pool, group_of
from temper.orchestrator.cluster.ray_cluster import start_ray, stop_ray
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.loop.mixture import open_mixture
from temper.orchestrator.loop.step_report import StepReport
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.pipeline.config import Config, make_config
from temper.orchestrator.run.driver_memory import keep_driver_small
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.ledger import Ledger
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.run_supervision import LoopView, RunSupervision
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.orchestrator.tools.bench.loop import run_steps
from temper.orchestrator.tools.bench.stand_ins import (
    SEQUENCES,
    TOKENS_PER_S,
    IdleRank,
    ReplayWorker,
    made_up_answers,
    recorded_answers,
)
from temper.orchestrator.tracking.tracker import Trackers
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import WeightVersion

PROCESSES, RANKS = 2, 2
SKIPPED = 2
"""Steps at the start that are not counted: processes warm up, and memory grows to its size."""
GROUP_SIZE = 16
MAX_LAG = 3
"""With half of the engines' places in a step: there are twice as many answers in flight as places, so none is ever free."""
STAGE = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The driver at the end of a step."""

    at: float
    cpu_s: float
    memory: int
    """Bytes of its own memory: what lies in Ray's shared memory is not among them."""
    tokens: int
    """Sampled tokens of the step."""


def bench_config(engines: int) -> Config:
    """Return the settings of the traffic: mathematics alone, whose verifier needs no other process."""
    length = 4096
    return make_config(
        {
            "name": STAGE,
            "stages": ["rl"],
            "envs": {"math": {"share": 1}},
            "learner": {"ranks": RANKS, "micro_batch_tokens": 16384},
            "rl": {
                "group_size": GROUP_SIZE,
                "groups_per_step": engines * SEQUENCES // GROUP_SIZE // 2,
                "max_lag": MAX_LAG,
            },
            "rollout": {
                "workers": engines,
                "limits": {"turn_tokens": length // 2, "total_tokens": length},
                "engine": {"max_model_len": length, "max_sequences": engines // PROCESSES * SEQUENCES},
            },
        }
    )


async def bench_driver(engines: int, steps: int, *, model: Path | None, recordings: Sequence[Path]) -> list[Sample]:
    """Return the driver after each step of a run of its own; `model` has the tokenizer of recorded answers."""
    keep_driver_small()
    config = bench_config(engines)
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        try:
            if model is None:
                model = Path(folder) / "model"
                make_model(model, config.model.fresh, seed=config.seed)
            answers = recorded_answers(recordings) if recordings else made_up_answers(model, seed=config.seed)
            start_ray(slots=PROCESSES + RANKS, min_sandbox_level=config.sandbox.min_level)
            pool = crowded_pool(
                ReplayWorker, config.rollout, answers, model_dir=model, processes=PROCESSES, seed=config.seed
            )
            await pool.start()
            print(f"{engines} workers serve in {PROCESSES} processes", file=sys.stderr)
            learner = group_of(IdleRank, ranks=RANKS)
            pad = pad_id(load_tokenizer(model))
            return await _steps(pool, learner, config, Path(folder) / "run", pad=pad, steps=steps)
        finally:
            stop_ray()


async def _steps(
    pool: RolloutPool, learner: TrainerGroup, config: Config, root: Path, *, pad: int, steps: int
) -> list[Sample]:
    rl, samples = config.section(RlConfig), list[Sample]()
    folder = RunDir(root)
    folder.open()
    run = RunContext(
        config, folder=folder, tracker=Trackers(), progress=Progress(stream=io.StringIO()), stop=StopFlag()
    )
    supervision = RunSupervision(
        run, members=lambda: [*pool.members(), *learner.members()], resize=lambda workers: False
    )
    ledger = Ledger(folder.ledger, STAGE)
    buffer = Buffer(groups_per_step=rl.groups_per_step, max_lag=rl.max_lag, max_drops=0, ledger=ledger)
    version = VersionCell(WeightVersion(step=0))
    mixture = open_mixture(config.environments, {}, split="train", seed=config.seed)
    builder = BatchBuilder(config=config.learner, pad_id=pad)

    async def log(report: StepReport) -> None:
        run.log(STAGE, report.step, step_metrics(report))
        if report.step % config.checkpoints.trajectories_every == 0:
            path = folder.trajectory_file(STAGE, report.step)
            await run.write_trajectories(path, report.groups, name=STAGE, step=report.step)
        samples.append(_sample(report))
        print(f"step {report.step} of {steps}: {report.times.total:.1f} s", file=sys.stderr)

    run.progress.stage(STAGE, steps)
    supervision.shows(
        LoopView(stage=STAGE, buffer=buffer, version=version, failures=FailureWatch(rl.max_failures, setting=""))
    )
    async with supervision.watching():
        await run_steps(
            pool,
            learner,
            mixture,
            rl,
            builder,
            buffer=buffer,
            version=version,
            steps=steps,
            on_step=log,
            stop=run.stop,
        )
    return samples


def _sample(report: StepReport) -> Sample:
    tokens = sum(t.sampled_tokens for group in report.groups for t in group.trajectories)
    return Sample(at=time.monotonic(), cpu_s=time.process_time(), memory=_own_memory(), tokens=tokens)


def _own_memory() -> int:
    """Return the bytes of this process's memory that belong to no file and to nobody else."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def figures_of(samples: list[Sample], *, engines: int) -> dict[str, float]:
    """Return the figures of a run, its first steps left out. `driver/cores` is the share of a core at the full traffic."""
    first, *counted = samples[SKIPPED - 1 :]
    seconds, cpu_s = counted[-1].at - first.at, counted[-1].cpu_s - first.cpu_s
    tokens = sum(sample.tokens for sample in counted)
    half = len(counted) // 2
    early, late = counted[:half] or counted, counted[half:]
    return {
        "driver/tokens_per_s": tokens / seconds,
        "driver/cpu_share": cpu_s / seconds,
        "driver/cpu_us_per_token": 1e6 * cpu_s / tokens,
        "driver/cores": cpu_s / tokens * engines * TOKENS_PER_S,
        "driver/memory_mb": counted[-1].memory / 1e6,
        "driver/memory_growth": fmean(s.memory for s in late) / fmean(s.memory for s in early),
    }


def main(arguments: list[str]) -> None:
    """Print one JSON object: the figures, then the driver after each step."""
    parser = argparse.ArgumentParser(
        prog="python -m temper.orchestrator.tools.bench.driver", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--engines", type=int, default=64, help="how many engines the workers stand for")
    parser.add_argument("--steps", type=int, default=8, help="steps of the loop; 8.7 s each at full speed")
    parser.add_argument("--recording", type=Path, nargs="*", default=[], help="files of trajectories to play instead")
    parser.add_argument("--model", type=Path, help="the folder of the model that they are of")
    given = parser.parse_args(arguments)
    if given.recording and given.model is None:
        parser.error("--recording needs --model, for the tokenizer of the answers")
    samples = asyncio.run(bench_driver(given.engines, given.steps, model=given.model, recordings=given.recording))
    over_time = [
        {"s": round(s.at - samples[0].at, 1), "cpu_s": round(s.cpu_s, 2), "memory_mb": round(s.memory / 1e6, 1)}
        for s in samples
    ]
    print(json.dumps(figures_of(samples, engines=given.engines) | {"driver/steps": over_time}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
