"""When a process counts as stuck, and how often a dead one is replaced."""

from dataclasses import dataclass

from temper.envs.core.bounds import not_negative, positive
from temper.envs.core.setting import running


@dataclass(frozen=True, kw_only=True)
class SupervisionConfig:
    """How the processes of a run are watched. One that is stuck is looked at, ended, and replaced as a dead one is."""

    pulse_s: float = running(2.0)
    """Seconds between two looks at every process, and between two writings of status.json."""
    silent_s: float = running(60.0)
    """Seconds without an answer after which a process counts as hung. An engine answers between its passes: longer than one
    of these may take."""
    stalled_s: float = running(180.0)
    """Seconds after which a process that answers counts as hung, if it is at work and gets nothing done: no pass of the
    engine, no micro-batch, no call of an environment that has ended or has time left. Below the deadlines of stages, such as
    rl.timeout_s: a hang that is found later ends the run."""
    restarts: int = running(3)
    """How often a rollout worker, each by itself, and likewise the learner is started anew within `window_s`; one more death in
    its place ends the run."""
    window_s: float = running(1800.0)
    """The seconds over which restarts are counted."""

    def __post_init__(self) -> None:
        positive("supervision.pulse_s", self.pulse_s)
        positive("supervision.stalled_s", self.stalled_s)
        positive("supervision.window_s", self.window_s)
        not_negative("supervision.restarts", self.restarts)
        if self.silent_s <= self.pulse_s:
            raise ValueError(
                f"supervision.silent_s={self.silent_s} must be above supervision.pulse_s={self.pulse_s}: a process is "
                f"asked once in that time"
            )
