"""The sides of the loop as it sees them: who samples, who learns, and the evaluations beside both."""

from typing import Protocol

from temper.learner.batches.micro_batches import TrainBatch
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.begun import BegunGroup
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push


class Rollouts(Protocol):
    """The rollout workers, seen as one."""

    async def run_group(self, ticket: Ticket, samples: int, begun: BegunGroup | None) -> Group: ...

    async def groups_in_flight(self) -> list[BegunGroup]: ...

    async def load_weights(self, push: Push) -> WeightVersion: ...

    async def engine_stats(self) -> EngineStats: ...


class Learner(Protocol):
    """The learner's ranks, seen as one."""

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]: ...

    async def publish(self, version: WeightVersion) -> Push: ...


class Evaluations:
    """Evaluations of the weights between steps, beside the loop. This one makes none; whoever does overrides all of it."""

    def begin(self, step: int, version: WeightVersion) -> None:
        """Begin an evaluation of the weights after a step, which are served as `version`, where one is due."""

    async def free(self) -> None:
        """Wait until the engines may be given groups to train on, and may sleep after those."""

    async def finished(self) -> None:
        """Wait until no evaluation is under way; raise what one failed with."""

    def last_sign(self) -> float:
        """Return when an evaluation got on last, on the monotonic clock."""
        return 0.0

    async def give_up(self) -> None:
        """End the evaluation that is under way."""
