"""The sandbox for programs that the model writes: what it holds against on this machine."""

from collections.abc import Iterator

from temper.envs.sandbox.probe import Isolation
from temper.envs.sandbox.sandbox import MAX_LEVEL, MIN_LEVEL, REMEDY, Sandbox
from temper.orchestrator.tools.preflight.doctor.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject


def look_at_sandbox(subject: Subject) -> Iterator[Finding]:
    """Try attacks as the sandbox does where it starts."""
    config = subject.given
    least = MIN_LEVEL if config is None else config.sandbox.min_level
    programs = config is not None and any(env.runs_programs for env in config.environments.values())
    yield check_isolation(tried(), least=least, programs=programs)


def tried(max_level: int = MAX_LEVEL) -> Isolation:
    """Return what a sandbox of this level at most holds against. Raise `SandboxError` where none can be started."""
    sandbox = Sandbox(min_level=0, max_level=max_level)
    try:
        sandbox.warm()
        assert sandbox.isolation is not None
        return sandbox.isolation
    finally:
        sandbox.close()


def check_isolation(isolation: Isolation, *, least: int, programs: bool) -> Finding:
    """Say whether a sandbox isolates enough; `programs` where environments run what the model writes."""
    level = isolation.level
    if level < least:
        said = f"level {level} of {MAX_LEVEL}, and sandbox.min_level={least}"
        through = f"{said}: NOT STOPPED: {', '.join(isolation.succeeded)}"
        return failure(through, REMEDY) if programs else warning(f"{through}; no environment needs it", REMEDY)
    return ok(f"level {level} of {MAX_LEVEL} ({', '.join(isolation.layers)})")
