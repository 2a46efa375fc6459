"""A learner that only takes time, and sends weights that are none."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from temper.learner.batches.micro_batches import TrainBatch
from temper.orchestrator.tools.preflight.simulation.meter import FleetMeter
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports import Audience


class SimulatedLearner:
    """Takes as long for a step as its tokens say, and for a push as pushes take."""

    def __init__(self, speeds: Speeds, meter: FleetMeter) -> None:
        self._speeds, self._meter = speeds, meter
        self._delivery = Delivery(self, processes=1)
        self._batch_s = 0.0

    def batches(self, groups: Sequence[Group]) -> list[TrainBatch]:
        """Take note of how long a step on these groups takes; there are no arrays to be trained."""
        answers = [answer for group in groups for answer in group.trajectories]
        tokens = sum(answer.sampled_tokens for answer in answers) + self._speeds.prompt_tokens * len(answers)
        self._batch_s = self._speeds.learn_fixed_s + tokens * self._speeds.learn_token_s
        return []

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        """Compute for the seconds of the batch, all its epochs together."""
        with self._at_work():
            await asyncio.sleep(self._batch_s)
        return {"skipped": 0.0}

    async def publish(self, version: WeightVersion) -> Push:
        """Lay out weights, and return the push of none."""
        with self._at_work():
            await asyncio.sleep(self._speeds.publish_s)
        none: tuple[()] = ()
        manifest = WeightManifest(
            transport=self._speeds.transport,
            version=version.step,
            names=none,
            dtypes=none,
            shapes=none,
            offsets=none,
            nbytes=1,
            checksum="",
        )
        return Push(manifest=manifest, delivery=self._delivery)

    async def host(self) -> str:
        """Return an address that nobody connects to."""
        return "simulated"

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        """Offer nothing, at once."""
        offered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        offered.set_result(None)
        return offered

    async def send(self, version: int) -> None:
        """Send while the engines load, whose time it is."""

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        meter = self._meter
        meter.count()
        meter.learning = True
        try:
            yield
        finally:
            meter.count()
            meter.learning = False
