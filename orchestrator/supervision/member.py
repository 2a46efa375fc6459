"""A process under watch."""

from typing import Protocol

from envs.core.pulse import Pulse


class Member(Protocol):
    """A rollout worker or a rank of the learner, as far as it is watched. See `RolloutActor` and `TrainerActor`."""

    @property
    def name(self) -> str: ...

    async def pulse(self) -> Pulse: ...

    def kill(self) -> None: ...
