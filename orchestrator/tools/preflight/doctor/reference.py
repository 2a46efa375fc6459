"""The environments: whether reference answers in the model's format get the full reward."""

import asyncio
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import BadCall, ParsedTurn, call_message, parse_turn
from temper.envs.source import data_of, distinct_tasks, open_source
from temper.envs.transcript import TranscriptScore, score_turns
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.pipeline.settings_checks import check_entry_points
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget, to_download
from temper.rewards.score import correctness
from temper.rollout.config import EpisodeLimits
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.formats.messages import REASONING

TASKS = 8
"""Number of tasks per environment."""
REASONING_OF = "It is known."
"""The thinking before a reference answer of a thinking model."""


@dataclass(slots=True, kw_only=True)
class PlayedTask:
    """The results of the reference answers of an environment."""

    tried: int = 0
    env_errors: list[str] = field(default_factory=list)
    """Answers without the full reward if the environment reads them directly."""
    broken: bool = False
    """Whether the environment failed to score one of them."""
    template_errors: list[str] = field(default_factory=list)
    """Answers without it only if the model's template writes and reads them."""
    longest: int = 0
    """Tokens of the longest turn."""
    prompt: int = 0
    """Tokens of the longest prompt."""


def inspect_environments(target: CheckTarget) -> Iterator[Finding]:
    """Run the reference answers of every environment."""
    check_entry_points(target.config)
    for name, env in target.config.environments.items():
        if any(map(to_download, data_of(env))):
            continue
        if env.definition.reference is None:
            yield ok(f"{name} has no reference answers")
            continue
        only_evaluated = env.config.data is None and env.config.eval_data is not None
        source = open_source(env, split="heldout" if only_evaluated else "train", seed=target.config.seed)
        yield _check_reference(env, distinct_tasks(source, TASKS), target.start.renderer, target.config.rollout.limits)


def _check_reference(env: BoundEnv, tasks: Sequence[Task], renderer: Renderer, limits: EpisodeLimits) -> Finding:
    """Count the reference answers of tasks with the full reward, in turns that the renderer writes and reads."""
    played = PlayedTask()
    for task in tasks:
        # a thread with a new context would download
        playing = in_thread(copy_context().run, _play, env, task, renderer, played)
        try:
            asyncio.run(asyncio.wait_for(playing, limits.timeout_s))
        except TimeoutError:
            return failure(
                f"{env.name}: the reference answer of {task.key} has no score after {limits.timeout_s:g} s",
                "find the cause of the delay, or raise rollout.limits.timeout_s",
            )
    right = played.tried - len(played.env_errors) - len(played.template_errors)
    said = f"{env.name}: {right} of {played.tried} reference answers are correct"
    if played.env_errors and (env.config.reward is None or played.broken):
        return failure(
            f"{said}; {played.env_errors[0]}",
            f"correct the reference answers or the verifier: temper env check --env {env.definition.id}",
        )
    if played.template_errors:
        return failure(
            f"{said} through the model's template; {played.template_errors[0]}",
            "set model.chat_template, or declare the model's calls in model.tool_calls",
        )
    if not played.tried:
        return ok(f"{env.name}: none of {len(tasks)} tasks has a reference answer")
    if played.prompt >= limits.total_tokens:
        said = f"{env.name}: a prompt has {played.prompt} tokens of rollout.limits.total_tokens={limits.total_tokens}"
        return failure(f"{said}, which leave none for an answer", "raise rollout.limits.total_tokens")
    if played.env_errors:
        return warning(
            f"{said} for {env.config.reward}; {played.env_errors[0]}",
            "let the function accept the form that the prompt asks for, unless it judges something else",
        )
    if played.longest > limits.turn_tokens:
        return warning(
            f"{said}, but one has a turn of {played.longest} tokens, more than rollout.limits.turn_tokens={limits.turn_tokens}",
            f"set rollout.limits.turn_tokens={2 * played.longest} or more, to leave space for thinking",
        )
    return ok(f"{said} through the model's template, longest turn {played.longest} tokens")


def _play(env: BoundEnv, task: Task, renderer: Renderer, played: PlayedTask) -> None:
    assert env.definition.reference is not None
    try:
        turns = env.definition.reference(task)
    except ValueError:  # the task has none
        return
    played.tried += 1
    context = renderer.prompt_ids(task)
    played.prompt = max(played.prompt, len(context))

    def read(text: str) -> ParsedTurn:
        """Return a reference turn as the template writes and reads it. Raise `ValueError` if it can't be written."""
        thinks = task.thinks and renderer.format.tags is not None
        message = _message(parse_turn(text, thinks=False)) | ({REASONING: REASONING_OF} if thinks else {})
        ids = renderer.encode(renderer.answer_text(message, thinks=task.thinks, context_ids=context))
        played.longest = max(played.longest, len(ids))
        return renderer.parse(renderer.text(ids), task, context)

    scored = score_turns(task, turns, read=read)
    if _is_right(scored):
        return
    own = score_turns(task, turns)
    if _is_right(own):
        played.template_errors.append(f"{task.key}: {_why(scored)}")
    else:
        played.env_errors.append(f"{task.key}: {_why(own)}")
        played.broken |= own.failure is not None


def _message(turn: ParsedTurn) -> Message:
    calls = []
    for call in turn.calls:
        if isinstance(call, BadCall):
            raise ValueError(f"a reference turn has a call that can't be read ({call.error})")
        calls.append(call_message(call.name, call.arguments))
    return {"role": "assistant", "content": turn.content} | ({"tool_calls": calls} if calls else {})


def _is_right(scored: TranscriptScore) -> bool:
    return scored.failure is None and correctness(scored.score.parts, scored.reward) >= 1.0


def _why(scored: TranscriptScore) -> str:
    if scored.failure is not None:
        return f"{scored.failure.kind.value}: {scored.failure.message}"[:200]
    outcome = scored.score.outcome
    return f"{'no score' if outcome is None else outcome.value} {scored.score.detail}".strip()[:200]
