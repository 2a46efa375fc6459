"""Answers whose lengths have a long tail: what a step waits for, at several lags and with partial rollouts.

`python -m temper.orchestrator.tools.bench.tails` runs the loop on the demo's fresh model, once for each way, with the
same lengths. A length
is drawn for each group, and its answers are cut off there: the fresh model hardly ever ends a turn by itself.
"""

import asyncio
import json
import math
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from temper.learner.batches.builder import BatchBuilder
from temper.learner.models.fresh import make_model
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.mixture import open_mixture
from temper.orchestrator.loop.step_report import StepReport
from temper.orchestrator.pipeline.config import Config, settled_config
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.orchestrator.tools.bench.loop import run_steps
from temper.orchestrator.tools.bench.processes import started
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push

CONFIG = Path("configs/demo.yaml")
SETTINGS = (
    *("rl.groups_per_step=8", "rl.group_size=4", "rl.max_drops=0"),
    *("envs.code.share=0", "envs.tool_use.share=0"),
)
WAYS: Mapping[str, tuple[int, float | None]] = {
    "lag_0": (0, None),
    "lag_0_partial": (3, 0.25),
    "lag_1": (1, None),
    "lag_1_partial": (3, 1.0),
    "lag_3": (3, None),
}
"""`max_lag` and `over_sampling` by name."""
STEPS, SKIPPED = 20, 4
"""Steps of each way, and how many at the start are not counted: the pipeline fills."""
MEDIAN, SPREAD, SHORTEST, LONGEST = 40, 1.0, 4, 400
"""Tokens of an answer: log-normal, the deviation is that of its logarithm."""


def answer_tokens(number: int) -> int:
    """Return how long the answers of a ticket are."""
    drawn = random.Random(number).lognormvariate(math.log(MEDIAN), SPREAD)
    return max(SHORTEST, min(LONGEST, round(drawn)))


class LongTailed:
    """Rollout workers whose answers are as long as drawn."""

    def __init__(self, pool: RolloutPool) -> None:
        self._pool = pool

    async def run_group(self, ticket: Ticket, samples: int, begun: BegunGroup | None) -> Group:
        """Return the group of a ticket."""
        cut = replace(ticket.sampling, max_tokens=answer_tokens(ticket.number))
        return await self._pool.run_group(replace(ticket, sampling=cut), samples, begun)

    async def groups_in_flight(self) -> list[BegunGroup]:
        """Return what there is of the groups in flight."""
        return await self._pool.groups_in_flight()

    async def load_weights(self, push: Push) -> WeightVersion:
        """Deliver a push."""
        return await self._pool.load_weights(push)

    async def engine_stats(self) -> EngineStats:
        """Return what the engines did since they were last asked."""
        return await self._pool.engine_stats()


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What all ways share."""

    config: Config
    pool: RolloutPool
    learner: TrainerGroup
    builder: BatchBuilder
    version: VersionCell

    async def reports(self, *, max_lag: int, over_sampling: float | None) -> list[StepReport]:
        """Return what the steps of one way report."""
        rl = replace(self.config.section(RlConfig), max_lag=max_lag, over_sampling=over_sampling)
        buffer = Buffer(groups_per_step=rl.groups_per_step, max_lag=max_lag, max_drops=0, slots=rl.slots)
        mixture = open_mixture(self.config.environments, {}, split="train", seed=self.config.seed)
        reports: list[StepReport] = []

        async def keep(report: StepReport) -> None:
            reports.append(report)

        workers, version = LongTailed(self.pool), self.version
        await run_steps(
            workers, self.learner, mixture, rl, self.builder, buffer=buffer, version=version, steps=STEPS, on_step=keep
        )
        return reports


async def bench_tails(config: Config) -> dict[str, float]:
    """Return for each way its tokens a second over those at lag 0, how far it lagged, and how long its answers were."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        model, rl = Path(folder) / "model", config.section(RlConfig)
        make_model(model, config.model.fresh, seed=config.seed)
        async with started(config, model) as made:
            await made.learner.load(model, optim=rl.optim, loss=rl.loss, total_steps=len(WAYS) * STEPS)
            await made.learner.use_threads(config.learner.threads_beside)
            builder = BatchBuilder(config=config.learner, pad_id=pad_id(load_tokenizer(model)))
            version = VersionCell(WeightVersion(step=0))
            bench = _Bench(config=config, pool=made.pool, learner=made.learner, builder=builder, version=version)
            return _figures(
                {name: await bench.reports(max_lag=lag, over_sampling=beyond) for name, (lag, beyond) in WAYS.items()}
            )


def _figures(made: Mapping[str, list[StepReport]]) -> dict[str, float]:
    """Return the figures of all ways; `first_length` is that of the first step's answers over the mean at lag 0."""
    mean_length = fmean(_lengths(made["lag_0"]))
    speeds = {name: _tokens_per_s(reports[SKIPPED:]) for name, reports in made.items()}
    figures: dict[str, float] = {}
    for name, reports in made.items():
        rows = [step_metrics(report) for report in reports[SKIPPED:]]
        measured = {
            "tokens_per_s": speeds[name] / speeds["lag_0"],
            "lag_mean": fmean(row["train/lag_mean"] for row in rows),
            "lag_max": max(row["train/lag_max"] for row in rows),
            "lag_tokens": fmean(row["train/lag_tokens"] for row in rows),
            "partial": fmean(row["rollout/partial"] for row in rows),
            "wait_share": sum(row["time/wait_s"] for row in rows) / sum(row["time/step_s"] for row in rows),
            "first_length": fmean(_lengths(reports[:1])) / mean_length,
        }
        figures |= {f"tails/{name}/{figure}": value for figure, value in measured.items()}
    return figures


def _tokens_per_s(reports: list[StepReport]) -> float:
    return sum(_lengths(reports)) / sum(report.times.total for report in reports)


def _lengths(reports: list[StepReport]) -> list[int]:
    """Return the tokens of each answer that was trained on."""
    return [t.sampled_tokens for report in reports for group in report.groups for t in group.trajectories]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(bench_tails(settled_config(CONFIG, list(SETTINGS))))))
