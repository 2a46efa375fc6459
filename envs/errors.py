"""Faults that are not the model's doing. They are raised, never scored as zero."""


class EnvError(Exception):
    """Something outside the model broke while an episode was run or scored."""


class EnvironmentFault(EnvError):
    """The environment itself failed: broken task data, a tool that raised."""


class SandboxError(EnvError):
    """The sandbox could not run a program: fork or set-up failed, or the zygote died twice."""


class GraderError(EnvError):
    """The verifier failed on its own account, not because of what the model wrote."""
