"""Faults that are not the model's doing: raised, never scored as zero, and in one place turned into data."""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class EnvError(Exception):
    """Something outside the model broke while an episode was run or scored; `kind` is the name it is counted under."""

    kind: ClassVar[str] = "environment"


class EnvironmentFault(EnvError):
    """The environment itself failed: broken task data, a tool that raised, a remote server that can't be reached."""


class SandboxError(EnvError):
    """The sandbox could not run a program: fork or set-up failed, or the zygote died twice."""

    kind = "sandbox"


class GraderError(EnvError):
    """The verifier failed on its own account, not because of what the model wrote."""

    kind = "grader"


class EpisodeTimeout(EnvError):
    """The episode's deadline passed."""

    kind = "timeout"


class PromptTooLong(EnvError):
    """The prompt is as long as a whole episode may be."""

    kind = "prompt_too_long"


class FailureKind(Enum):
    """Whose fault it was that an episode has no score. Never the model's: a model's own fault has a score."""

    ENGINE = "engine"  # generation failed
    ENVIRONMENT = "environment"  # reset or step raised, or returned what is no answer to a turn
    SANDBOX = "sandbox"  # the sandbox could not run the program
    GRADER = "grader"  # the reward function raised or returned no finite number
    TIMEOUT = "timeout"  # the episode's deadline passed
    PROMPT_TOO_LONG = "prompt_too_long"  # the prompt leaves no token for an answer
    REFUSED = "refused"  # the server that was asked would not answer
    WORKER = "worker"  # the process that graded it died or hung


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A typed failure: kept as data, counted, never scored."""

    kind: FailureKind
    message: str


def failure_of(error: BaseException) -> Failure:
    """Return the failure of an exception. An unknown kind counts as `environment`."""
    kind = error.kind if isinstance(error, EnvError) else EnvError.kind
    known = next((one for one in FailureKind if one.value == kind), FailureKind.ENVIRONMENT)
    return Failure(kind=known, message=describe_error(error))


def describe_error(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "its message can't be read"
    return f"{type(error).__name__}: {text}"[:500].encode(errors="replace").decode()
