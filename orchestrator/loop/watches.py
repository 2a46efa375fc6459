"""Watches that end a stage without progress: metrics outside of bands, failed episodes, skipped steps."""

from collections import Counter, deque
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field

from temper.envs.core.errors import Failure, FailureKind
from temper.orchestrator.loop.config import METRICS, BandsConfig
from temper.rollout.trajectory import Group

REMEDIES = {
    "kl": "optim.learning_rate, loss.kl_coefficient",
    "entropy": "optim.learning_rate, sampling.temperature",
    "mismatch_abs": "rollout.engine.dtype, learner.bf16, max_lag",
    "truncated": "raise rollout.limits.turn_tokens and total_tokens, or shorten reasoning with thinking.budget",
    "nonzero_advantage": "tasks are too hard or too easy: envs.NAME.level or other rows, group_size, more sft",
}
"""The settings that help for each band. Names without a section belong to the stage."""


class OutOfBand(RuntimeError):
    """A metric was outside its band for too long."""


class BandWatch:
    """Counts consecutive steps outside each band. A step without the metric does not count."""

    def __init__(self, bands: BandsConfig, *, setting: str) -> None:
        """`setting` names the bands in messages."""
        self._bands = {name: band for name, band in bands.by_name.items() if band.is_watched}
        self._setting = setting
        self._outside = dict.fromkeys(self._bands, 0)
        self._last: dict[str, str] = {}

    def add(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Count a step. Return alarms by setting: the metrics that left their band in this step or came back."""
        alarms = {}
        for name, band in self._bands.items():
            value = metrics.get(METRICS[name])
            if value is None:
                continue
            shown, problem = f"{METRICS[name]} {value:.4g}", band.problem(value)
            before = self._outside[name]
            self._outside[name] = before + 1 if problem else 0
            self._last[name] = f"{shown} {problem}"
            if problem and before + 1 == band.alarm_at:
                steps = f" in {before + 1} steps" if before else ""
                alarms[f"{self._setting}.{name}"] = f"{shown} {problem}{steps} ({REMEDIES[name]})"
            elif before >= band.alarm_at and not problem:
                alarms[f"{self._setting}.{name}"] = f"{shown} is inside again after {before} steps"
        return alarms

    def check(self, step: int) -> None:
        """Raise `OutOfBand` for a metric that was outside for `stop_after` steps."""
        for name, band in self._bands.items():
            if band.stop_after and self._outside[name] >= band.stop_after:
                raise OutOfBand(
                    f"{self._setting}.{name}: {self._last[name]}, as in {self._outside[name]} steps up to {step} "
                    f"(stop_after={band.stop_after}). The trained state is saved. Change the bound or stop_after and rerun "
                    f"the same command to resume"
                )


WATCHED = 64
"""Number of last episodes of an environment over which failures count, rounded up to a whole group."""
AT_FAULT = {
    FailureKind.ENGINE: "the engine is at fault",
    FailureKind.ENVIRONMENT: "environment {env!r} is at fault",
    FailureKind.SANDBOX: "the sandbox is at fault",
    FailureKind.GRADER: "the grader of environment {env!r} is at fault",
    FailureKind.TIMEOUT: "the engine or environment {env!r} takes longer than rollout.limits.timeout_s",
    FailureKind.PROMPT_TOO_LONG: "the prompts of environment {env!r} are too long for rollout.limits.total_tokens",
    FailureKind.REFUSED: "the server refuses to answer",
    FailureKind.WORKER: "the processes that grade environment {env!r} die",
}


class TooManyFailures(RuntimeError):
    """Too many episodes failed for reasons outside the model."""


CountedGroups = list[tuple[int, tuple[Failure, ...]]]
"""The size and the failures of each group."""


@dataclass(slots=True, kw_only=True)
class _Window:
    """The last episodes of one environment: the size and the failures of each group."""

    groups: deque[tuple[int, tuple[Failure, ...]]] = field(default_factory=deque)

    @property
    def played(self) -> int:
        return sum(played for played, _ in self.groups)

    @property
    def failures(self) -> list[Failure]:
        return [failure for _, failures in self.groups for failure in failures]

    def add(self, group: Group) -> None:
        """Count a group. Forget the oldest groups beyond `WATCHED` episodes."""
        failures = group.failures
        self.groups.append((len(group.trajectories) + len(failures), failures))
        while self.played - self.groups[0][0] >= WATCHED:
            self.groups.popleft()


class FailureWatch:
    """Counts failed episodes by environment, including retried ones."""

    def __init__(self, highest_share: float, *, setting: str) -> None:
        """`setting` names the share in messages."""
        self._highest = highest_share
        self._setting = setting
        self._windows: dict[str, _Window] = {}
        self.kinds: Counter[FailureKind] = Counter()

    def state(self) -> dict[str, CountedGroups]:
        """Return the counts by environment for a checkpoint."""
        return {env: list(window.groups) for env, window in self._windows.items()}

    def restore(self, state: Mapping[str, CountedGroups]) -> None:
        """Resume counting from a state."""
        self._windows |= {env: _Window(groups=deque(groups)) for env, groups in state.items()}

    def add(self, group: Group) -> None:
        """Count a group. After `WATCHED` episodes of the environment raise `TooManyFailures` above the share."""
        env = group.ticket.task.env.name
        window = self._windows.setdefault(env, _Window())
        window.add(group)
        self.kinds.update(failure.kind for failure in group.failures)
        if window.played >= WATCHED:
            self._judge(env, window)

    async def on(self, answering: Awaitable[Group]) -> Group:
        group = await answering
        self.add(group)
        return group

    def conclude(self) -> None:
        """Raise `TooManyFailures` above the share for any number of episodes, since no more will come."""
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
            f"more than {self._setting}={self._highest:g} allows. The last one: {last.kind.value}: {last.message}"
        )


class NothingTrained(RuntimeError):
    """Too many steps in a row were skipped."""


class SkipWatch:
    """Counts consecutive skipped steps: loss or gradient was not finite, or no token was trained."""

    def __init__(self, most: int, *, stage: str) -> None:
        self._most = most
        self._stage = stage
        self._skipped: list[int] = []

    def restore(self, steps: Iterable[tuple[int, bool]]) -> None:
        self._skipped = []
        for step, skipped in steps:
            self._count(step, skipped=skipped)

    def add(self, step: int, *, skipped: bool, evidence: str) -> None:
        """Count a step. Raise `NothingTrained` with the `evidence` after too many skipped steps."""
        self._count(step, skipped=skipped)
        if len(self._skipped) >= self._most:
            raise NothingTrained(
                f"{self._stage}: steps {self._skipped[0]} to {step} were skipped (learner.max_skipped={self._most}): loss or "
                f"gradient was not finite, or no token was trained; {evidence}"
            )

    def _count(self, step: int, *, skipped: bool) -> None:
        self._skipped = [*self._skipped, step] if skipped else []
