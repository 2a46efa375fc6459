"""The environments: whether their gold answers get the full reward if the model gives them in its own form."""

import asyncio
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, call_message, parse_turn
from temper.envs.playback import Scored, score
from temper.envs.source import data_of, distinct, open_source
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.pipeline.start_checks import check_entry_points
from temper.orchestrator.tools.preflight.doctor.subject import Subject, to_download
from temper.rewards.verdict import correctness
from temper.rollout.episodes.episode import EpisodeLimits
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.formats.messages import THOUGHT

TASKS = 8
"""Tasks of each environment whose gold answers are played."""
THOUGHT_OF = "It is known."
"""What is thought before a gold answer, where the model thinks."""


@dataclass(slots=True, kw_only=True)
class Played:
    """What became of the gold answers of an environment."""

    tried: int = 0
    own_fault: list[str] = field(default_factory=list)
    """Answers that are not worth all as the environment itself would read them."""
    form_fault: list[str] = field(default_factory=list)
    """Those that are, but not when they are written and read by the model's template."""
    longest: int = 0
    """Tokens of the longest turn."""
    prompt: int = 0
    """Tokens of the longest prompt."""


def look_at_environments(subject: Subject) -> Iterator[Finding]:
    """Play gold answers of every environment."""
    check_entry_points(subject.config)
    for name, env in subject.config.environments.items():
        if any(map(to_download, data_of(env))):
            continue
        if env.definition.gold is None:
            yield ok(f"{name} has no gold answers to be played")
            continue
        only_evaluated = env.config.data is None and env.config.eval_data is not None
        source = open_source(env, split="heldout" if only_evaluated else "train", seed=subject.config.seed)
        tasks, limits = distinct(source, TASKS), subject.config.rollout.limits
        yield check_gold(env, tasks, subject.start.renderer, limits)


def check_gold(env: BoundEnv, tasks: Sequence[Task], renderer: Renderer, limits: EpisodeLimits) -> Finding:
    """Say how many gold answers of tasks are worth all, said by the model whose turns the renderer writes and reads."""
    try:
        played = play_gold(env, tasks, renderer, seconds=limits.timeout_s)
    except TimeoutError as error:
        return failure(f"{env.name}: {error}", "mend what hangs there, or raise rollout.limits.timeout_s")
    right = played.tried - len(played.own_fault) - len(played.form_fault)
    said = f"{env.name}: {right} of {played.tried} gold answers are right"
    if played.own_fault:
        return failure(
            f"{said}; {played.own_fault[0]}",
            f"mend what it says is right, or its judge: temper env check --env {env.definition.id}",
        )
    if played.form_fault:
        return failure(
            f"{said} through the model's template; {played.form_fault[0]}",
            "give the model another template with model.chat_template, or declare its calls with model.tool_calls",
        )
    if not played.tried:
        return ok(f"{env.name}: none of {len(tasks)} tasks has a gold answer")
    if played.prompt >= limits.total_tokens:
        said = f"{env.name}: a prompt has {played.prompt} tokens of rollout.limits.total_tokens={limits.total_tokens}"
        return failure(f"{said}, which leaves none for an answer", "raise rollout.limits.total_tokens")
    if played.longest > limits.turn_tokens:
        return warning(
            f"{said}, but one has a turn of {played.longest} tokens, more than rollout.limits.turn_tokens={limits.turn_tokens}",
            f"set rollout.limits.turn_tokens={2 * played.longest} or more, since the model thinks too",
        )
    return ok(f"{said} through the model's template, the longest turn {played.longest} tokens")


def play_gold(env: BoundEnv, tasks: Sequence[Task], renderer: Renderer, *, seconds: float) -> Played:
    """Play the gold answers of tasks, each as the model's template writes and reads it.

    Raise `TimeoutError` where one is not played within so many seconds.
    """
    played = Played()
    for task in tasks:
        try:  # in a context of its own a thread would download
            asyncio.run(asyncio.wait_for(in_thread(copy_context().run, _play, env, task, renderer, played), seconds))
        except TimeoutError as error:
            raise TimeoutError(f"the gold answer of {task.key} has no verdict after {seconds:g} s") from error
    return played


def _play(env: BoundEnv, task: Task, renderer: Renderer, played: Played) -> None:
    assert env.definition.gold is not None
    try:
        turns = env.definition.gold(task)
    except ValueError:  # the task holds none
        return
    played.tried += 1
    speaker = _Speaker(renderer, task)
    scored = score(task, turns, read=speaker.read)
    played.longest = max(played.longest, speaker.longest)
    played.prompt = max(played.prompt, speaker.prompt)
    if _right(scored):
        return
    own = score(task, turns)
    faults = played.form_fault if _right(own) else played.own_fault
    faults.append(f"{task.key}: {_why(scored if _right(own) else own)}")


class _Speaker:
    """Says gold turns of a task as a model would, and reads them as its turns are read."""

    def __init__(self, renderer: Renderer, task: Task) -> None:
        self._renderer = renderer
        self._task = task
        self._context = renderer.prompt_ids(task)
        self.longest, self.prompt = 0, len(self._context)

    def read(self, text: str) -> ParsedTurn:
        """Return what is read of a turn that is written by the template. Raise `ValueError` where it can't be written."""
        renderer, task = self._renderer, self._task
        thinks = task.thinks and renderer.format.tags is not None
        message = _message(parse_turn(text, thinks=False)) | ({THOUGHT: THOUGHT_OF} if thinks else {})
        ids = renderer.encode(renderer.answer_text(message, thinks=task.thinks, context_ids=self._context))
        self.longest = max(self.longest, len(ids))
        return renderer.parse(renderer.text(ids), task, self._context)


def _message(turn: ParsedTurn) -> Message:
    calls = []
    for call in turn.calls:
        if isinstance(call, BadCall):
            raise ValueError(f"a gold turn has a call that can't be read ({call.error})")
        assert isinstance(call, Call)
        calls.append(call_message(call.name, call.arguments))
    return {"role": "assistant", "content": turn.said} | ({"tool_calls": calls} if calls else {})


def _right(scored: Scored) -> bool:
    return scored.failure is None and correctness(scored.verdict.parts, scored.reward) >= 1.0


def _why(scored: Scored) -> str:
    if scored.failure is not None:
        return f"{scored.failure.kind.value}: {scored.failure.message}"[:200]
    outcome = scored.verdict.outcome
    return f"{'no verdict' if outcome is None else outcome.value} {scored.verdict.detail}".strip()[:200]
