"""A learner that only takes time, and publishes empty weights."""

import asyncio
from collections.abc import Sequence

from temper.learner.batches.micro_batches import TrainBatch
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports import Audience


class SimulatedLearner:
    """Sleeps for the planned seconds of a step and of a push."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._delivery = Delivery(self, processes=1)
        self._batch_s = 0.0
        self.busy_s = 0.0
        """Seconds of steps and pushes so far."""

    def batches(self, groups: Sequence[Group]) -> list[TrainBatch]:
        """Record the seconds of a step on these groups; there are no arrays to train on."""
        answers = [answer for group in groups for answer in group.trajectories]
        tokens = sum(answer.sampled_tokens for answer in answers) + self._speeds.prompt_tokens * len(answers)
        self._batch_s = self._speeds.learn_fixed_s + tokens * self._speeds.learn_token_s
        return []

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        """Compute for the seconds of the batch, all its epochs together."""
        await self._work(self._batch_s)
        return {"skipped": 0.0}

    async def publish(self, version: WeightVersion) -> Push:
        """Return a push without weights."""
        await self._work(self._speeds.publish_s)
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
        """Return an address that no one connects to."""
        return "simulated"

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        """Offer nothing, at once."""
        offered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        offered.set_result(None)
        return offered

    async def send(self, version: int) -> None:
        """Take no time: the engines' load counts it."""

    async def _work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.busy_s += seconds
