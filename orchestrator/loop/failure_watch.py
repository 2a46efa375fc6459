"""Halts a stage whose episodes fail outside the model too often, and names what is at fault: never a silent zero."""

from collections import Counter, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from temper.envs.core.failure import Failure, FailureKind
from temper.rollout.trajectory import Group
from temper.rollout.trajectory_json import failure_from_json, failure_to_json

WATCHED = 64
"""Over how many of an environment's last episodes its failures are counted, to the next whole group."""
AT_FAULT = {
    FailureKind.ENGINE: "the engine is at fault",
    FailureKind.ENVIRONMENT: "environment {env!r} is at fault",
    FailureKind.SANDBOX: "the sandbox is at fault",
    FailureKind.GRADER: "the grader of environment {env!r} is at fault",
    FailureKind.TIMEOUT: "the engine or environment {env!r} takes longer than rollout.limits.timeout_s",
    FailureKind.PROMPT_TOO_LONG: "the prompts of environment {env!r} are too long for rollout.limits.total_tokens",
    FailureKind.REFUSED: "the server that was asked refuses to answer",
    FailureKind.WORKER: "the processes that grade environment {env!r} die",
}


class TooManyFailures(RuntimeError):
    """Too many episodes failed for reasons outside the model."""


@dataclass(slots=True, kw_only=True)
class _Window:
    """The last episodes of one environment: of each group how many were played, and the failures among them."""

    groups: deque[tuple[int, tuple[Failure, ...]]] = field(default_factory=deque)

    @property
    def played(self) -> int:
        return sum(played for played, _ in self.groups)

    @property
    def failures(self) -> list[Failure]:
        return [failure for _, failures in self.groups for failure in failures]

    def add(self, group: Group) -> None:
        """Count a group, and keep those before as far as they are needed for `WATCHED` episodes."""
        failures = group.failures
        self.groups.append((len(group.trajectories) + len(failures), failures))
        while self.played - self.groups[0][0] >= WATCHED:
            self.groups.popleft()


class FailureWatch:
    """Counts failed episodes by environment, those that were tried again included."""

    def __init__(self, highest_share: float, *, setting: str) -> None:
        """`setting` is what the share is called in the configuration."""
        self._highest = highest_share
        self._setting = setting
        self._windows: dict[str, _Window] = {}
        self.kinds: Counter[FailureKind] = Counter()
        """Failures since the beginning, by kind."""

    def state(self) -> dict[str, list[dict[str, Any]]]:
        """Return what it counted as plain JSON data, for a checkpoint."""
        return {
            env: [
                {"played": n, "failures": [failure_to_json(one) for one in failures]} for n, failures in window.groups
            ]
            for env, window in self._windows.items()
        }

    def restore(self, state: dict[str, list[dict[str, Any]]]) -> None:
        """Go on counting after what `state` returned."""
        for env, groups in state.items():
            counted = ((one["played"], tuple(failure_from_json(data) for data in one["failures"])) for one in groups)
            self._windows[env] = _Window(groups=deque(counted))

    def add(self, group: Group) -> None:
        """Count a group; raise `TooManyFailures` past the share, once the environment has played enough episodes to tell."""
        env = group.ticket.task.env.name
        window = self._windows.setdefault(env, _Window())
        window.add(group)
        self.kinds.update(failure.kind for failure in group.failures)
        if window.played >= WATCHED:
            self._judge(env, window)

    async def on(self, answering: Awaitable[Group]) -> Group:
        """Wait for a group, count it and return it."""
        group = await answering
        self.add(group)
        return group

    def conclude(self) -> None:
        """Raise `TooManyFailures` past the share, however few episodes there were: no more will come."""
        for env, window in self._windows.items():
            self._judge(env, window)

    def _judge(self, env: str, window: _Window) -> None:
        failures, played = window.failures, window.played
        if len(failures) <= self._highest * played:
            return
        kinds = Counter(failure.kind for failure in failures)
        worst = kinds.most_common(1)[0][0]
        last = next(failure for failure in reversed(failures) if failure.kind is worst)
        raise TooManyFailures(
            f"{AT_FAULT[worst].format(env=env)}: {len(failures)} of the last {played} episodes of environment {env!r} "
            f"failed outside the model ({', '.join(f'{kind.value} {count}' for kind, count in kinds.most_common())}), "
            f"more than {self._setting}={self._highest:g} allows; the last one: {last.kind.value}: {last.message}"
        )
