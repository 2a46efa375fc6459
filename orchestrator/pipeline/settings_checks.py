"""Checks of the settings alone, for any model and data. They import no heavy library, so a dry run makes them too."""

from collections.abc import Iterator

from temper.envs.catalog import env_class
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.loop import LoopConfig, RlConfig
from temper.orchestrator.loop.config import FASTEST_RISE
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.finding import Finding, warning
from temper.orchestrator.stages.stage import Role, StageInstance

LIMITS_REMEDY = "remove the smaller setting, or raise it"


def check_stages(config: Config, ahead: list[StageInstance]) -> None:
    """Raise `ValueError` if a stage cannot run or an environment cannot be imported, for any model and data."""
    for one in ahead:
        config.require_stage(one)
    if any(one.stage.role is not Role.REPORT for one in ahead):
        check_entry_points(config)


def check_entry_points(config: Config) -> None:
    for name, env in config.environments.items():
        try:
            env_class(env.ref)
        except Exception as error:  # a user's module may raise anything
            raise ValueError(
                f"envs.{name}: {env.ref.entry_point} can't be imported ({type(error).__name__}: {error})"
            ) from error


def check_settings(config: Config, ahead: list[StageInstance], *, profile_resolved: bool = True) -> Iterator[Finding]:
    """Warn of limits, deadlines and penalties that conflict with others. The profile may choose limits and deadlines."""
    if profile_resolved:
        yield from check_turns(config, ahead)
        yield from check_hangs(config, ahead)
    yield from check_penalties(config, ahead)
    yield from check_samples(config, ahead)


def check_turns(config: Config, ahead: list[StageInstance]) -> Iterator[Finding]:
    """Warn of environments whose episodes the run's limit of turns truncates."""
    limit = config.rollout.limits.turns
    if limit is None or not any(map(config.plays, ahead)):
        return
    for name, env in config.environments.items():
        settings = env.ref.settings
        own = settings.tool_turns if settings.tools and settings.max_turns is not None else settings.max_turns
        if own is None or limit < own:
            turns = f"at most {own}" if own is not None else "any number of turns"
            text = f"rollout.limits.turns={limit} truncates the episodes of {name}, which have {turns}"
            yield warning(text, LIMITS_REMEDY)


def check_hangs(config: Config, ahead: list[StageInstance]) -> Iterator[Finding]:
    """Warn of stages whose deadline passes before supervision finds a hung process."""
    stalled = config.supervision.stalled_s
    settings = [(one.name, config.settings(one)) for one in ahead]
    for name, waits in settings:
        if isinstance(waits, LoopConfig) and waits.timeout_s <= stalled:
            text = (
                f"{name}.timeout_s={waits.timeout_s:g} is not above supervision.stalled_s={stalled:g}: a process that hangs "
                f"while it answers ends the run instead of being replaced"
            )
            yield warning(text, LIMITS_REMEDY)


def check_penalties(config: Config, ahead: list[StageInstance]) -> Iterator[Finding]:
    """Warn of length penalties that rise faster than the measured accuracy can fall."""
    for one in ahead:
        settings = config.settings(one)
        if isinstance(settings, RlConfig) and settings.shaping.penalty_rise > FASTEST_RISE:
            shaping = settings.shaping
            text = (
                f"{one.name}.shaping.penalty_step={shaping.penalty_step:g} with accuracy_margin={shaping.accuracy_margin:g}: "
                f"the penalty may rise by {shaping.penalty_rise:g} a step, before a fall of the accuracy shows"
            )
            yield warning(text, f"lower one of them, so that their product is at most {FASTEST_RISE:g}")


def check_samples(config: Config, ahead: list[StageInstance]) -> Iterator[Finding]:
    """Warn if evaluations answer a task once, because greedy answers are the same."""
    warned = set()
    for one in ahead:
        settings, name = config.settings(one), one.name if one.overrides else one.stage.name
        before, asked, answers = "", 0, 0
        if isinstance(settings, EvalConfig):
            asked, answers = settings.samples, settings.answers_per_task
        elif isinstance(settings, LoopConfig) and settings.eval_every:
            before, asked, answers = "eval_", settings.eval_samples, settings.eval_answers_per_task
        if answers < asked and name not in warned:
            warned.add(name)
            key = f"{name}.{before}samples"
            text = f"{key}={asked}, but each task is answered once, because all its answers would be the same"
            yield warning(text, f"set {key}=1, or {name}.{before}sampling.temperature above 0 and no top_k=1")
