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


class EpisodeTimeout(EnvError):
    """The episode's deadline passed."""

    kind = "timeout"


class PromptTooLong(EnvError):
    """The prompt is as long as a whole episode may be."""

    kind = "prompt_too_long"
