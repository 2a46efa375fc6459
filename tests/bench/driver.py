"""`bench`, the driver: its CPU time and received bytes for each sampled token, with made-up answers.

`python -m bench.driver [--engines 64]`, a part of `make bench`. The stage `rl` runs with its pool, buffer, event
log, metrics, batches, checkpoints and files. Workers and ranks are objects of this process. Their data are pickled as for
Ray, and their own CPU time does not count. Ray's cost of a call is not measured here: `CALL_S` is added.
"""

import argparse
import asyncio
import io
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.plain_process import PlainProcess
from support.replayed_run import AskingStage
from support.turns import turn_of
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.envs.core.process import NOTHING, Heartbeat, ProgressCounter, StoredResult
from temper.learner.batches.builder import BatchBuilder
from temper.learner.models.fresh import make_model
from temper.learner.trainer_group import RankHandle, TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.driver import keep_driver_small
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.engines import Engines
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.registry import all_stages
from temper.rewards.score import Outcome, Score
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.episodes.worker import RolloutWorker, WorkerHandle
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.trajectory import Closed, Group, Stop, ThinkingStats, Ticket, Trajectory, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine
from temper.rollout.weights.config import SHARED_MEMORY
from temper.rollout.weights.delivery import ServedWeights
from temper.rollout.weights.manifest import WeightManifest

TOKENS_PER_S = 3000
"""Of an engine."""
SEQUENCES = 64
"""Answers that an engine samples at once."""
LENGTHS = (200, 400, 600, 800, 1200, 1800)
"""Tokens of the answers: 833 in the mean."""
GROUP_SIZE = 16
RANKS = 2
CALL_S = 0.25 / 613
"""Seconds of the driver's CPU for a call of a worker by Ray, measured on two CPU cores, all threads together."""
STEPS, SKIPPED = 13, 3
"""Steps, and uncounted ones at the start: the pipeline fills. The other ten have one checkpoint."""
TEXT = "abcdefgh " * 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The driver at the report of a step: its CPU time and received bytes so far, and the step's sampled tokens."""

    cpu_s: float
    received: int
    tokens: int


class Remote(PlainProcess):
    """An object of this process as if it were in another one.

    `remote_s` is the CPU time of all such objects, and `received` are the bytes that the driver received.
    """

    remote_s = 0.0
    received = 0

    def __init__(self, target: Any) -> None:
        self._target = target

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        if method == "wait_until_dead":
            await asyncio.Event().wait()
        return await run_away(self._run, method, args, named)

    async def call_stored(self, method: str, *args: object) -> tuple[Any, StoredResult]:
        return await run_away(self._run_stored, method, args)

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Any:
        return None

    async def put(self, data: object) -> object:
        return Put(dump(data))

    def _run(self, method: str, args: tuple[object, ...], named: Mapping[str, object] = NOTHING) -> Any:
        result = getattr(self._target, method, ignored)(*args, **named)
        return asyncio.run(result) if asyncio.iscoroutine(result) else result

    def _run_stored(self, method: str, args: tuple[object, ...]) -> tuple[Any, "Stored"]:
        first, second = self._run(method, args)
        Stored.held.append(dump(second))
        return first, Stored(len(Stored.held) - 1)


def ignored(*args: object, **named: object) -> None: ...


class Put:
    """Data in shared memory. In another process it is the data."""

    def __init__(self, dumped: "Dump") -> None:
        self._dumped = dumped

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return load, (self._dumped,)


class Stored:
    """A stored result. Its bytes are here, and no object of the driver refers to them."""

    held: list["Dump"] = []

    def __init__(self, number: int) -> None:
        self._number = number

    async def read(self) -> Any:
        return load(self.held[self._number])


AWAY = ThreadPoolExecutor(1)
"""The thread of all other processes."""
Dump = tuple[bytes, list[bytes]]


def dump(data: object) -> Dump:
    """Return data as Ray moves them: arrays as raw bytes."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    return pickled, [bytes(one) for one in buffers]


def load(dumped: Dump) -> Any:
    """Return the data in place."""
    return pickle.loads(dumped[0], buffers=dumped[1])


async def run_away(function: Callable[..., Any], *args: object) -> Any:
    """Return the result of a function in another process. Only moving its data counts."""
    sent = dump(args)

    def work() -> Dump:
        began = time.thread_time()
        try:
            return dump(function(*load(sent)))
        finally:
            Remote.remote_s += time.thread_time() - began

    received = await asyncio.get_running_loop().run_in_executor(AWAY, work)
    Remote.received += len(received[0]) + sum(map(len, received[1]))
    return load(received)


class AnsweringWorker(RolloutWorker):
    """Answers without an engine."""

    async def start(
        self, model_dir: str, version: int, record_experts: bool = False, sleeps: bool = False
    ) -> WeightVersion:
        return WeightVersion(step=version)

    async def run_group(
        self, ticket: Ticket, samples: int, attempt: int = 0, partial: PartialGroup | None = None
    ) -> Group:
        draw = np.random.default_rng(ticket.number)
        lengths = draw.choice(LENGTHS, samples).tolist()
        return Group(ticket=ticket, trajectories=tuple(_answer(ticket, length, draw) for length in lengths))

    async def engine_stats(self) -> EngineStats:
        return EngineStats()

    async def load_weights(self, manifest: WeightManifest, offer: object, number: int) -> WeightVersion:
        return manifest.weight_version


def _answer(ticket: Ticket, length: int, draw: np.random.Generator) -> Trajectory:
    right = bool(draw.random() < 0.5)
    thinking = ThinkingStats(tokens=length - 20, answer_tokens=20, closed=Closed.ITSELF)
    sampled, versions = draw.integers(32, 127, length).tolist(), [ticket.admitted.step] * length
    turn = turn_of(sampled, context=range(100), versions=versions, text=TEXT[:length], thinking=thinking)
    score = Score(outcome=Outcome.OK if right else Outcome.WRONG, parts={"correct": float(right)})
    return Trajectory(task=ticket.task, turns=(turn,), stop=Stop.ENV, reward=float(right), score=score, seconds=1.0)


class IdleRank:
    """A rank without a model. Its other calls do nothing."""

    def __init__(self) -> None:
        self._progress_counter = ProgressCounter()

    def build(self, groups: Sequence[Group], builds: object) -> set[int]:
        return set()

    def train(self, **named: object) -> dict[str, float]:
        return {"skipped": 0.0, "loss": 0.0}

    def token_records(self) -> tuple[int, list[object]]:
        return 0, []

    def publish(self, version: int) -> WeightManifest:
        return WeightManifest(
            transport=SHARED_MEMORY, version=version, names=(), dtypes=(), shapes=(), offsets=(), nbytes=1, checksum=""
        )

    def checkpoint_bytes(self) -> int:
        return 1

    def save(self, directory: str, **named: object) -> bool:
        return True

    def heartbeat(self) -> Heartbeat:
        return self._progress_counter.heartbeat()


class IdleTrainer(Trainer):
    """Its ranks are idle."""

    async def start(self, name: str) -> TrainerGroup:
        if self.learner is None:
            ranks = [RankHandle(Remote(IdleRank()), number=number) for number in range(RANKS)]
            self.learner = TrainerGroup(ranks, engine_processes=1)
        return self.learner

    def batch_builder(self) -> BatchBuilder:
        return BatchBuilder(config=self._run.config.learner, pad_id=0)


class AnsweringEngines(Engines):
    """Its workers have no engine."""

    async def serve(self, model: Path, *, who: str) -> RolloutPool:
        config = self._run.config.rollout
        remote = Remote(AnsweringWorker(config, seed=0, make_engine=make_engine, make_agent_server=make_agent_server))
        self.pool = RolloutPool(
            lambda number: WorkerHandle(remote, number=number),
            workers=config.workers,
            weights=ServedWeights(model, WeightVersion(step=0), push_s=lambda nbytes: 60.0),
            retries=0,
        )
        await self.pool.start()
        return self.pool


def bench_config(engines: int) -> Config:
    """Return the settings of the traffic, with half of the engines' sequences in a step."""
    groups = engines * SEQUENCES // GROUP_SIZE // 2
    settings = [
        "learner.ranks=2",
        "learner.micro_batch_tokens=16384",
        "envs={math: {share: 1}}",
        f"rl.group_size={GROUP_SIZE}",
        f"rl.groups_per_step={groups}",
        "rl.max_lag=3",
        "rl.loss.token_range=[0.5,5]",
        f"rl.steps={STEPS}",
        "rl.checkpoint_every=10",
        "rl.eval_every=0",
        f"rollout.workers={engines}",
    ]
    return load_config(Path("configs/demo.yaml"), settings)


async def bench_driver(config: Config) -> list[Sample]:
    """Return the driver at the report of each step."""
    keep_driver_small()
    samples = list[Sample]()
    kind = single_instance(all_stages()["rl"])
    instance = AskingStage(stage=kind.stage, name=kind.name, overrides=kind.overrides)
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as root, Progress(stream=io.StringIO()) as progress:
        folder = RunDir(Path(root) / "run")
        folder.open()
        make_model(folder.root / "model", config.model.fresh, seed=config.seed)
        folder.store(RunState(model="model", began={"rl": "model"}, stages={"rl": "rl"}))
        run = Run(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
        run.trainer, run.engines = IdleTrainer(run), AnsweringEngines(run, start_learner=None)
        run.in_process = run_away
        log = run.log

        def logged(name: str, step: int, metrics: dict[str, float]) -> None:
            log(name, step, metrics)
            tokens = int(metrics["rollout/tokens_per_s"] * metrics["time/step_s"])
            cpu_s = time.process_time() - Remote.remote_s
            samples.append(Sample(cpu_s=cpu_s, received=Remote.received, tokens=tokens))
            print(f"step {step} of {STEPS}: {metrics['time/step_s']:.1f} s", file=sys.stderr)

        run.log = logged  # type: ignore[method-assign]
        try:
            await LoopStage(run, config.section(RlConfig), instance).run()
        finally:
            await run.trainer.close()
            await run.engines.close()
            folder.close()
    return samples


def figures_of(samples: Sequence[Sample], *, config: Config) -> dict[str, float]:
    """Return the figures of a run. `driver/cores` is the driver's CPU at the full traffic, with Ray's calls."""
    first, *counted = samples[SKIPPED - 1 :]
    tokens = sum(one.tokens for one in counted)
    token_s = (counted[-1].cpu_s - first.cpu_s) / tokens
    engines, mean = config.rollout.workers, sum(LENGTHS) / len(LENGTHS)
    calls = engines * TOKENS_PER_S / mean / GROUP_SIZE + (engines + RANKS) / config.supervision.heartbeat_s
    return {
        "driver/cpu_us_per_token": 1e6 * token_s,
        "driver/calls_per_s": calls,
        "driver/cores": token_s * engines * TOKENS_PER_S + calls * CALL_S,
        "driver/received_bytes_per_token": (counted[-1].received - first.received) / tokens,
    }


def main() -> None:
    """Print the figures as a JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.driver", description=__doc__)
    parser.add_argument("--engines", type=int, default=64, help="engines of 3,000 tokens/s (default: 64)")
    config = bench_config(parser.parse_args().engines)
    print(json.dumps(figures_of(asyncio.run(bench_driver(config)), config=config)))


if __name__ == "__main__":
    main()
