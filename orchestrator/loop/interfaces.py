"""What the loop needs of engines, learner, evaluations and of the devices that engines and learner share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from temper.learner.batches.micro_batches import TrainBatch
from temper.orchestrator.loop.step import StepReport
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push


class Rollouts(Protocol):
    """The rollout workers, seen as one."""

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None) -> Group: ...

    async def groups_in_flight(self) -> list[PartialGroup]: ...

    async def load_weights(self, push: Push) -> WeightVersion: ...

    async def engine_stats(self) -> EngineStats: ...


class Learner(Protocol):
    """The learner's ranks, seen as one."""

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]: ...

    async def publish(self, version: WeightVersion) -> Push: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The calls by which a stage handles the groups and the steps of its loop.

    `on_group` watches a finished group and returns it with the rewards that depend on the whole group. `on_step` writes
    metrics. `save` writes a checkpoint after the steps that have one. The buffer's state is whole when these two run.
    `on_fault` gets the stop or the fault that ends the loop, while the groups in flight are still there.
    """

    make_batches: Callable[[list[Group]], list[TrainBatch]]
    on_group: Callable[[Group], Group]
    on_step: Callable[[StepReport], Awaitable[None]]
    save: Callable[[int], Awaitable[None]]
    on_fault: Callable[[Exception], Awaitable[None]]
    take_partial: Callable[[Ticket], PartialGroup | None] = lambda _: None
    """Gives the part of a ticket's group that was sampled before a restart; None if it begins anew."""


class Evaluations:
    """Evaluations of the weights between steps, concurrent with the loop. This class makes none; a subclass overrides it."""

    def begin(self, step: int, version: WeightVersion) -> None:
        """Begin an evaluation of the weights after a step, which are served as `version`, where one is due."""

    async def free(self) -> None:
        """Wait until the engines may be given groups to train on, and may sleep after those."""

    async def finished(self) -> None:
        """Wait until no evaluation is under way. Raise the error of one that failed."""

    def last_progress(self) -> float:
        """Return when an evaluation got on last, on the monotonic clock."""
        return 0.0

    async def cancel(self) -> None:
        """End the evaluation that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePhase:
    """The contents of the devices in one phase: weights and cache of the engines, weights and states of the learner.

    sampling    the engines have weights and cache there, the learner has nothing
    learning    the learner has weights and states there, the engines have nothing; a checkpoint is saved in this phase too
    pushing     the learner has its weights alone there, to push from, and the engines theirs, to load into

    Who gives comes first, then who takes. `orchestrator/session/colocated_phases.py` makes them work in phases.
    """

    name: str
    engine_weights: bool
    cache: bool
    learner_weights: bool
    states: bool


SAMPLING = DevicePhase(name="sampling", engine_weights=True, cache=True, learner_weights=False, states=False)
LEARNING = DevicePhase(name="learning", engine_weights=False, cache=False, learner_weights=True, states=True)
PUSHING = DevicePhase(name="pushing", engine_weights=True, cache=False, learner_weights=True, states=False)


class DevicePhases:
    """Asked before each part of a step. This one lets all have their devices for themselves, all the time."""

    async def begin(self, phase: DevicePhase) -> None:
        """Begin a phase, which ends the one before. In that phase already, do nothing."""
