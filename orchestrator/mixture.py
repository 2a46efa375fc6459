"""The mixture: which environment the next group comes from, and which of its tasks."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from envs.source import EnvConfig, open_source
from envs.task import Task, TaskSource
from envs.thinking import UNLIMITED, ThinkingMix


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One draw: the task at `index` of an environment's source. Enough to draw it again."""

    env: str
    index: int


class Mixture:
    """Draws from several task sources in fixed shares, always in the same order.

    The next environment is the one that is furthest behind its share, so the shares hold over any stretch of draws to
    within one, and a restart continues from the counts alone.
    """

    def __init__(
        self,
        sources: Mapping[str, TaskSource],
        shares: Mapping[str, float],
        *,
        thinking: ThinkingMix | None = None,
        seed: int = 0,
    ) -> None:
        """`thinking` has the shares of the modes among the tasks; without it every task thinks without a limit."""
        total = sum(shares.values())
        bad = {env: share for env, share in shares.items() if share < 0}
        if bad or total <= 0:
            raise ValueError(f"shares of environments must be 0 or more and not all 0, not {bad or shares}")
        self._sources = sources
        self._thinking = thinking or ThinkingMix()
        self._seed = seed
        self._shares = {env: share / total for env, share in shares.items()}
        self._counts = dict.fromkeys(shares, 0)

    def draw(self) -> Draw:
        """The next draw."""
        total = sum(self._counts.values()) + 1
        env = max(self._shares, key=lambda name: self._shares[name] * total - self._counts[name])
        index = self._counts[env]
        self._counts[env] += 1
        return Draw(env=env, index=index)

    def task(self, draw: Draw) -> Task:
        """The task of a draw, with its mode of thinking: a draw has the same one each time."""
        task = self._sources[draw.env].task(draw.index)
        if task.thinking != UNLIMITED:
            return task
        rng = random.Random(f"{self._seed}/thinking/{draw.env}/{draw.index}")
        return replace(task, thinking=self._thinking.draw(rng))

    def state(self) -> dict[str, int]:
        """How many tasks were drawn from each environment."""
        return dict(self._counts)

    def restore(self, counts: dict[str, int]) -> None:
        """Continue after these draws. Raises `ValueError` where the environments are not the same as then."""
        if set(counts) != set(self._counts):
            raise ValueError(
                f"the run was started with environments {sorted(counts)}, now it has {sorted(self._counts)}"
            )
        self._counts = dict(counts)


def open_mixture(
    envs: dict[str, EnvConfig],
    shares: dict[str, float],
    *,
    split: str,
    seed: int,
    thinking: ThinkingMix | None = None,
) -> Mixture:
    """The mixture over one split of the environments that have a share: their own, unless `shares` names another."""
    shares = {env: config.share for env, config in envs.items()} | shares
    used = {env: share for env, share in shares.items() if share > 0}
    sources = {env: open_source(env, envs[env], split=split, seed=seed) for env in used}
    return Mixture(sources, used, thinking=thinking, seed=seed)
