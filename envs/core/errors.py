"""Faults outside the model. They are raised, never scored as zero, and become data in one place."""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class EnvError(Exception):
    """A fault outside the model while an episode ran or was scored. Metrics count it under `kind`."""

    kind: ClassVar[str] = "environment"


class TemplateRefusal(ValueError):
    """The model's chat template refuses a kind of message. The text ends with a remedy."""


class EnvironmentFault(EnvError):
    """The environment failed: broken task data, a tool that raised, or an unreachable server."""


class SandboxError(EnvError):
    """The sandbox could not run a program: fork or set-up failed, or the zygote died twice."""

    kind = "sandbox"


class GraderError(EnvError):
    """The verifier itself failed, not because of the model's answer."""

    kind = "grader"


class EpisodeTimeout(EnvError):
    """The episode's deadline passed."""

    kind = "timeout"


class PromptTooLong(EnvError):
    """The prompt leaves no token for an answer."""

    kind = "prompt_too_long"


class FailureKind(Enum):
    """The cause of an episode without a score. A fault of the model has a score."""

    ENGINE = "engine"  # generation failed
    ENVIRONMENT = "environment"  # reset or step raised or returned an invalid result
    SANDBOX = "sandbox"  # the sandbox could not run the program
    GRADER = "grader"  # the reward function raised or returned no finite number
    TIMEOUT = "timeout"  # the episode's deadline passed
    PROMPT_TOO_LONG = "prompt_too_long"  # the prompt leaves no token for an answer
    REFUSED = "refused"  # the server refused to answer
    WORKER = "worker"  # the process that graded it died or hung


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A typed failure, which is counted and never scored."""

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
