"""A rollout worker as the pool sees it, wherever it runs."""

from pathlib import Path
from typing import Protocol

from temper.envs.core.member import Holding, Member
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import EngineEnd


class PoolWorker(Member, EngineEnd, Protocol):
    """One process with one engine. Every call raises `WorkerDied` where the process ends, or its engine's; one that is
    cancelled ends its work there too.
    """

    async def placed(self) -> None:
        """Wait until the process runs: until a machine has room for it. From then on its `place` is known."""
        ...

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        """Start the engine on a model directory, whose weights count as `version`; returns the one that it confirms."""
        ...

    async def died(self) -> None:
        """Wait for as long as worker and engine live."""
        ...

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group: ...

    async def groups_in_flight(self) -> list[BegunGroup]: ...

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int: ...

    async def isolation(self) -> str: ...

    async def engine_stats(self) -> EngineStats: ...

    async def occupy(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """See `Engine.occupy`."""
        ...

    async def holding(self) -> Holding: ...

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion: ...

    async def close(self) -> None: ...
