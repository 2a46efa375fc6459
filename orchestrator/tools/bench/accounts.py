"""`bench`, what supervision and accounts cost: looks at the processes, the ledger's rows, the states of episodes in flight."""

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from statistics import median

import psutil

from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.buffer import Buffer, Totals, VersionCell
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.ledger import Ledger
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.run_supervision import LoopView, RunSupervision
from temper.orchestrator.tools.bench.rollout import sample_groups
from temper.orchestrator.tracking.tracker import Trackers
from temper.rollout.engines.engine_process import cpu_s
from temper.rollout.episodes.resume import begun_to_json
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.trajectory import Group, WeightVersion

LOOKS = 150
BETWEEN_S = 0.03
"""Seconds between two looks, in which the answers come."""
ANSWER_S = 60.0
"""How long it may take until all processes have answered once, in seconds."""
REPEATS = 3
UNDER_WAY_S = 0.5
"""Seconds after which the states of episodes are taken."""
STEPS = 20
"""Steps whose rows of the ledger are written."""


async def bench_accounts(
    pool: RolloutPool,
    learner: TrainerGroup,
    mixture: Mixture,
    config: Config,
    groups: Sequence[Group],
    *,
    folder: Path,
    step_s: float,
) -> dict[str, float]:
    """Measure the parts, and all of them as a share of a step of `step_s` seconds.

    A look counts with the CPU time of the driver and of all that answer. It is taken as if nothing else could use that
    core meanwhile, so the share is the most that they can cost.
    """
    root = folder / "accounts"
    RunDir(root).open()
    look_s = await _look_s(pool, learner, mixture, config, root)
    ledger_s = await asyncio.to_thread(_ledger_s, config, groups, root / "ledger.jsonl")
    in_flight_s = await _in_flight_s(pool, mixture, config, root / "episodes.jsonl")
    share = look_s / config.supervision.pulse_s
    share += (ledger_s + in_flight_s / config.section(RlConfig).checkpoint_every) / step_s
    return {
        "accounts/look_s": look_s,
        "accounts/ledger_s_per_step": ledger_s,
        "accounts/episodes_in_flight_s_per_checkpoint": in_flight_s,
        "accounts/share_of_step": share,
    }


async def _look_s(pool: RolloutPool, learner: TrainerGroup, mixture: Mixture, config: Config, root: Path) -> float:
    """Return the CPU seconds of a look at all processes with its status.json, a full buffer in it."""
    rl, version = config.section(RlConfig), VersionCell(WeightVersion(step=0))
    progress = Progress(stream=io.StringIO())
    run = RunContext(config, folder=RunDir(root), tracker=Trackers(), progress=progress, stop=StopFlag())
    supervision = RunSupervision(
        run, members=lambda: [*pool.members(), *learner.members()], resize=lambda workers: False
    )
    buffer = Buffer(groups_per_step=rl.groups_per_step, max_lag=rl.max_lag, max_drops=0, slots=rl.slots)
    for _ in range(buffer.capacity):
        await buffer.admit(mixture, version)
    progress.stage("bench", 1)
    failures = FailureWatch(rl.max_failures, setting="rl.max_failures")
    supervision.shows(LoopView(stage="bench", buffer=buffer, version=version, failures=failures))
    async with asyncio.timeout(ANSWER_S):
        while any(member.progress is None for member in supervision.status().members):
            await _looks(supervision, 1)
    pids = [pid for member in supervision.status().members if member.pid is not None for pid in _family(member.pid)]
    idle = await _cpu_s(pids, asyncio.sleep(LOOKS * BETWEEN_S))
    busy = await _cpu_s(pids, _looks(supervision, LOOKS))
    return max(busy - idle, 0.0) / LOOKS


async def _looks(supervision: RunSupervision, count: int) -> None:
    for _ in range(count):
        await supervision.once()
        await asyncio.sleep(BETWEEN_S)


def _family(pid: int) -> list[int]:
    """Return a process and those that it started: an engine answers in one of its own."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


async def _cpu_s(pids: Sequence[int], work: Awaitable[None]) -> float:
    """Return the CPU seconds that this process and others use while something is done."""
    before = _used_s(pids)
    await work
    return _used_s(pids) - before


def _used_s(pids: Sequence[int]) -> float:
    return time.process_time() + cpu_s(pids)


def _ledger_s(config: Config, groups: Sequence[Group], path: Path) -> float:
    """Return the seconds that a step's rows of the ledger take, forced to disk once as for a checkpoint."""
    ledger, number = Ledger(path, "bench"), config.section(RlConfig).groups_per_step
    drawn = [groups[place % len(groups)] for place in range(number)]
    began = time.perf_counter()
    for step in range(1, STEPS + 1):
        for group in drawn:
            ledger.finished(group)
            ledger.trained(group.ticket, step=step)
            ledger.reissued(group.ticket.number, why="in the place of its admission")
        ledger.step(step, Totals(issued=number * step, trained=number * step))
        ledger.sync()
    return (time.perf_counter() - began) / STEPS


async def _in_flight_s(pool: RolloutPool, mixture: Mixture, config: Config, path: Path) -> float:
    """Return the seconds, in the median, that the states of a full buffer's episodes take, from the engines into a file."""
    rl, seconds = config.section(RlConfig), []
    number = rl.slots
    for repeat in range(REPEATS):
        tasks = [mixture.task(mixture.draw()) for _ in range(number)]
        first = 2 * 10**6 + repeat * number
        sampling = asyncio.create_task(sample_groups(pool, tasks, answers=rl.group_size, first=first))
        await asyncio.sleep(UNDER_WAY_S)
        began = time.perf_counter()
        begun = await pool.groups_in_flight()
        path.write_text("".join(json.dumps(begun_to_json(one)) + "\n" for one in begun), encoding="utf-8")
        seconds.append(time.perf_counter() - began)
        await sampling
    return median(seconds)
