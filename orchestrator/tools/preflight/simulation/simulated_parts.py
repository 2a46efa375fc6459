"""The simulated parts of a run, which only take time: driver CPU, engines in workers, learner.

All methods belong to one event loop of virtual time.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop
from itertools import count
from pathlib import Path

import numpy as np

from temper.envs.core.process import Place
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario, Speeds
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.pool.worker_handle import WorkerHandle
from temper.rollout.token_arrays import as_ids
from temper.rollout.trajectory import Group, Stop, Ticket, Times, Trajectory, Turn, WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports import Receivers

TOKEN_S = 0.75e-6
"""Seconds of the driver's CPU for a sampled token, as an upper bound. `bench.driver` measures a quarter of it."""
CALL_S = 0.25 / 613
"""Seconds of the driver's CPU for a call of a worker, measured on two CPU cores, all threads together."""
LEAST_TOKENS = 1e-6
"""Remainder of an answer that counts as finished: sums of floats are not exact."""
PROMPT = as_ids((1,))


class Driver:
    """The driver's CPU serves one request after another: one process with one interpreter lock."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self.busy_s = 0.0
        """Seconds of all requests so far."""

    async def take(self, seconds: float) -> None:
        """Wait until all earlier requests and this one are served."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + seconds
        self.busy_s += seconds
        await asyncio.sleep(self._free_at - now)


class GroupInEngine:
    """Answers that are sampled together. `done` has the end time of each in seconds."""

    def __init__(self, answers: int) -> None:
        self.ended = [0.0] * answers
        self.left = answers
        self.done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()

    def end(self, answer: int, now: float) -> None:
        """Record the last token of an answer."""
        self.ended[answer] = now
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(self.ended)


class EngineModel:
    """An engine whose pass adds a token to each sequence, and takes longer with more sequences.

    All sequences advance at the same rate between two events, so only starts and ends are simulated. Excess sequences wait in
    order. The end times match a pass-by-pass simulation to within a pass.
    """

    def __init__(self, pass_s: Sequence[float]) -> None:
        """`pass_s[n]` are the seconds of a pass with n sequences. The longest entry is a full engine."""
        self._pass_s = pass_s
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()
        self._work = 0.0  # tokens of a sequence that runs since the beginning
        self._running: list[tuple[float, int, GroupInEngine, int]] = []  # by the work at which they end
        self._waiting: deque[tuple[int, GroupInEngine, int]] = deque()
        self._numbers = count()
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.sampled = 0.0
        """Tokens, including abandoned answers."""
        self.busy_s = self.sequence_s = 0.0
        """Busy seconds without pauses, and their sum over all sequences, up to the last event."""

    def add(self, tokens: Sequence[int]) -> GroupInEngine:
        """Start a group of answers of these lengths when slots are free."""
        group = GroupInEngine(len(tokens))
        self.advance()
        self._waiting.extend((length, group, answer) for answer, length in enumerate(tokens))
        self._fill()
        return group

    def drop(self, group: GroupInEngine) -> None:
        """Abandon the unfinished answers of a group."""
        if not group.left:
            return
        self.advance()
        self._running = [one for one in self._running if one[2] is not group]
        self._waiting = deque(one for one in self._waiting if one[1] is not group)
        self._fill()

    def pause(self, *, paused: bool) -> None:
        """Sample nothing from now on, or resume."""
        self.advance()
        self._paused = paused
        self._arm()

    def advance(self) -> None:
        """Account for the time since the last event, during which the sequences did not change."""
        now, running = self._loop.time(), len(self._running)
        if running and not self._paused:
            passed = (now - self._at) / self._pass_s[running]
            self._work += passed
            self.sampled += passed * running
            self.busy_s += now - self._at
            self.sequence_s += running * (now - self._at)
        self._at = now

    def _fill(self) -> None:
        """Start waiting sequences while slots are free, and set the timer of the next end."""
        while self._waiting and len(self._running) < len(self._pass_s) - 1:
            length, group, answer = self._waiting.popleft()
            self._running.append((self._work + length, next(self._numbers), group, answer))
        heapify(self._running)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._paused:
            left = max(0.0, self._running[0][0] - self._work) * self._pass_s[len(self._running)]
            self._timer = self._loop.call_at(self._at + left, self._due)

    def _due(self) -> None:
        """End finished answers, and start waiting ones."""
        self._timer = None
        self.advance()
        while self._running and self._running[0][0] - self._work <= LEAST_TOKENS:
            _, _, group, answer = heappop(self._running)
            group.end(answer, self._at)
        self._fill()


class SimulatedWorker(WorkerHandle):
    """A rollout worker for the pool. It overrides the calls of a loop without checkpoints."""

    place: Place | None = None

    def __init__(self, number: int, scenario: Scenario, driver: Driver) -> None:
        self.name = f"rollout worker {number}"
        self.engine = EngineModel(scenario.speeds.pass_s)
        self._scenario, self._driver = scenario, driver
        self._counted = 0.0

    async def wait_until_running(self) -> None: ...

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        await asyncio.sleep(self._scenario.speeds.start_s)
        return version

    async def wait_until_dead(self) -> None:
        await asyncio.Event().wait()

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        """Return a group after the time of its answers in this engine, and then of its tokens in the driver."""
        began = asyncio.get_running_loop().time()
        tokens = self._scenario.lengths.of(ticket.number, samples)
        group = self.engine.add(tokens)
        try:
            await group.done
        finally:
            self.engine.drop(group)
        await self._driver.take(TOKEN_S * sum(tokens))
        return self._group(ticket, tokens, [at - began for at in group.ended])

    def _group(self, ticket: Ticket, tokens: list[int], seconds: list[float]) -> Group:
        """Return the group. The scenario's share of the groups has rewards with a signal."""
        draw = random.Random(f"{self._scenario.seed}/reward/{ticket.number}")
        teaches = draw.random() < self._scenario.kept
        answers = (
            Trajectory(
                task=ticket.task,
                turns=(_turn(length, ticket.admitted.step),),
                stop=Stop.ENV,
                reward=float(teaches and number == 0),
                seconds=spent,
                times=Times(generate_s=spent, step_s=0.0),
            )
            for number, (length, spent) in enumerate(zip(tokens, seconds, strict=True))
        )
        return Group(ticket=ticket, trajectories=tuple(answers))

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Pause for the time of a load, after the driver's call."""
        await self._driver.take(CALL_S)
        self.engine.pause(paused=True)
        try:
            await asyncio.sleep(self._scenario.speeds.load_s)
        finally:
            self.engine.pause(paused=False)
        return manifest.weight_version

    async def engine_stats(self) -> EngineStats:
        """Return the tokens since the last call."""
        sampled, self._counted = self.engine.sampled - self._counted, self.engine.sampled
        return EngineStats(sampled_tokens=round(sampled))

    def kill(self) -> None: ...

    async def close(self) -> None: ...


def _turn(length: int, version: int) -> Turn:
    """Return a turn of so many tokens from one version. Its arrays repeat one value, without memory."""
    return Turn(
        context_ids=PROMPT,
        sampled_ids=np.broadcast_to(np.int32(2), length),
        logprobs_T=np.broadcast_to(np.float32(-1), length),
        versions_T=np.broadcast_to(np.int32(version), length),
        injected_T=np.broadcast_to(np.False_, length),
        text="",
    )


class SimulatedLearner:
    """Sleeps for the planned seconds of a step and of a push, whose weights are empty."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._delivery = Delivery(self, processes=1)
        self._batch_s = 0.0
        self.busy_s = 0.0
        """Seconds of steps and pushes so far."""

    async def build(self, groups: Sequence[Group]) -> None:
        """Record the seconds of a step on these groups. There are no arrays to train on."""
        answers = [answer for group in groups for answer in group.trajectories]
        tokens = sum(answer.sampled_tokens for answer in answers) + self._speeds.prompt_tokens * len(answers)
        self._batch_s = self._speeds.learn_fixed_s + tokens * self._speeds.learn_token_s

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        """Compute for the seconds of the batch, all its epochs together."""
        await self._work(self._batch_s)
        return {"skipped": 0.0}

    async def publish(self, version: WeightVersion) -> Push:
        await self._work(self._speeds.publish_s)
        manifest = WeightManifest(
            transport=self._speeds.transport,
            version=version.step,
            names=(),
            dtypes=(),
            shapes=(),
            offsets=(),
            nbytes=1,
            checksum="",
        )
        return Push(manifest=manifest, delivery=self._delivery)

    async def host(self) -> str:
        return "simulated"

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> Offered:
        """Offer nothing, at once."""
        offered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        offered.set_result(None)
        return offered

    async def send(self, version: int) -> None:
        """Take no time: the engines' load includes it."""

    async def _work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.busy_s += seconds
