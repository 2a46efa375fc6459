"""Protocols that the loop needs: engines, learner, evaluations, and the phases of colocated devices."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from temper.orchestrator.loop.step import StepReport
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push


class Rollouts(Protocol):
    """All rollout workers as one."""

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None) -> Group: ...

    async def groups_in_flight(self) -> list[PartialGroup]: ...

    async def load_weights(self, push: Push) -> WeightVersion: ...

    async def engine_stats(self) -> EngineStats: ...


class Learner(Protocol):
    """All ranks of the learner as one."""

    async def step(self, *, epochs: int = 1) -> dict[str, float]: ...

    async def publish(self, version: WeightVersion) -> Push: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The callbacks of a stage.

    `on_group` checks a finished group and adds rewards that depend on the whole group. `on_step` writes metrics. `save`
    begins to write the records and the checkpoint that are due. The buffer's state is consistent in these two calls.
    `on_fault` gets the stop or the error that ends the loop, before the groups in flight end.
    """

    build_batches: Callable[[list[Group]], Awaitable[None]]
    """Let the learner build the batches of its next step. Raise `GroupsLost` if the turns of groups are lost."""
    on_group: Callable[[Group], Group]
    on_step: Callable[[StepReport], Awaitable[None]]
    save: Callable[[int], Awaitable[None]]
    on_fault: Callable[[Exception], Awaitable[None]]
    take_partial: Callable[[Ticket], PartialGroup | None] = lambda _: None
    """Return the partial group of a ticket, sampled before a restart; None for a new group."""


class Evaluations:
    """Evaluations of the weights between steps, concurrent with the loop. This class makes none."""

    def begin(self, step: int, version: WeightVersion) -> None:
        """Begin an evaluation of the weights after `step`, served as `version`, if one is due."""

    async def wait_until_free(self) -> None:
        """Wait until the engines are free for groups to train on."""

    async def wait_finished(self) -> None:
        """Wait for the current evaluation. Raise its error."""

    def last_progress(self) -> float:
        """Return the time of an evaluation's last progress, on the monotonic clock."""
        return 0.0

    async def cancel(self) -> None:
        """Cancel the current evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePhase:
    """The contents of colocated devices in one phase.

        sampling    the engines' weights and cache
        learning    the learner's weights and states; checkpoints are saved in this phase
        pushing     the learner's weights, which it sends, and the engines' weights, which receive them

    The side that frees memory goes first. `orchestrator/session/colocated_phases.py` implements the changes.
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
    """Called before each part of a step. This class is for dedicated devices and does nothing."""

    async def begin(self, phase: DevicePhase) -> None:
        """End the current phase and begin this one. Do nothing if it is the current phase."""
