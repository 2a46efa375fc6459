"""Faults that are not the model's doing. They are raised, never scored as zero."""

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


def kind_of(error: Exception) -> str:
    """The kind under which any exception of an environment is counted."""
    return error.kind if isinstance(error, EnvError) else EnvError.kind
