"""The mixture: it chooses the environment and the task of the next group."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Task, TaskSource
from temper.envs.core.thinking_mode import UNLIMITED, ThinkingMix
from temper.envs.source import open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The task at `index` of an environment's source. A draw recreates its task."""

    env: str
    index: int


class Mixture:
    """Draws from several task sources in fixed shares and a fixed order.

    The next environment is the one furthest behind its share. So the shares hold within one draw over any stretch, and the
    counts alone restore the mixture. New shares after a restart apply to the draws from there on.
    """

    def __init__(
        self,
        sources: Mapping[str, TaskSource],
        shares: Mapping[str, float],
        *,
        thinking: ThinkingMix | None = None,
        seed: int = 0,
    ) -> None:
        """`thinking` has the shares of the thinking modes. Without it every task has unlimited thinking."""
        total = sum(shares.values())
        bad = {env: share for env, share in shares.items() if share < 0}
        if bad or total <= 0:
            raise ValueError(f"shares of environments must be 0 or more and not all 0, not {bad or shares}")
        self._sources = sources
        self._thinking = thinking or ThinkingMix()
        self._seed = seed
        self._shares = {env: share / total for env, share in shares.items()}
        self._counts = dict.fromkeys(shares, 0)
        self._before = dict.fromkeys(shares, 0)
        """The draws before the current shares applied."""

    @property
    def envs(self) -> list[str]:
        return list(self._shares)

    def draw(self) -> Draw:
        since = {env: self._counts[env] - self._before[env] for env in self._shares}
        total = sum(since.values()) + 1
        env = max(self._shares, key=lambda name: self._shares[name] * total - since[name])
        index = self._counts[env]
        self._counts[env] += 1
        return Draw(env=env, index=index)

    def task(self, draw: Draw) -> Task:
        """Return the task of a draw with its mode of thinking. A draw always gives the same task."""
        task = self._sources[draw.env].task(draw.index)
        if task.thinking != UNLIMITED:
            return task
        rng = random.Random(f"{self._seed}/thinking/{draw.env}/{draw.index}")
        return replace(task, thinking=self._thinking.draw(rng))

    def state(self) -> dict[str, dict[str, float]]:
        """Return the draws of each environment, the draws before the current shares, and the shares."""
        return {"drawn": dict(self._counts), "before": dict(self._before), "shares": dict(self._shares)}

    def restore(self, state: dict[str, dict[str, float]]) -> None:
        """Resume after the draws of a state, with the current shares."""
        self._counts |= {
            env: int(count) for env, count in state["drawn"].items()
        }  # also environments without a share now
        same = state["shares"] == self._shares
        before = state["before"] if same else self._counts
        self._before = {env: int(before[env]) for env in self._shares}


def open_mixture(
    envs: Mapping[str, BoundEnv],
    shares: dict[str, float],
    *,
    split: str,
    seed: int,
    thinking: ThinkingMix | None = None,
) -> Mixture:
    """Open the mixture over one split of the environments with a share. `shares` overrides their own shares."""
    if not envs:
        raise ValueError(
            "envs is empty, so there are no tasks: add an environment, for example `envs: {math: {share: 1.0}}`"
        )
    shares = {name: env.config.share for name, env in envs.items()} | shares
    used = {name: share for name, share in shares.items() if share > 0}
    sources = {name: open_source(envs[name], split=split, seed=seed) for name in used}
    return Mixture(sources, used, thinking=thinking, seed=seed)
