"""The base class of the environments: `reset` sets a task, `step` grades turns, one episode per instance."""

import inspect
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from temper.envs.core.clock import stop_clock
from temper.envs.core.step_result import GymStep, StepResult, to_gymnasium
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, parse_turn
from temper.envs.judge import JUDGED, judge_answer
from temper.envs.own_reward import judge
from temper.envs.tools.mcp_server import McpServers
from temper.envs.tools.shared_tools import MAX_RESULT_CHARACTERS, shared_tools
from temper.envs.tools.text_tool import EnvTool, answer_call
from temper.rewards.score import (
    CORRECT,
    FORMAT,
    JUDGE,
    LENGTH,
    WEIGHTS,
    Outcome,
    Score,
    binary_score,
    brevity,
    weigh_reward,
)

MAX_CALLS = 8
TOO_MANY, UNANSWERED = "error: too many calls", "error: the call was not carried out"
MAX_CHARACTERS, LONGEST_SAMPLE = 65_536, 256
"""Characters of a text between the processes of a vector environment, and of a sample."""


class AnyText(spaces.Text):
    """Texts of any characters and any length. Samples are short and printable ASCII."""

    def __init__(self) -> None:
        super().__init__(MAX_CHARACTERS, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(0, LONGEST_SAMPLE + 1))
        return "".join(self.np_random.choice(list(self.character_list), size=length).tolist())


ANY_TEXT = AnyText()
"""The space of all environments. It is shared, since making a space takes longer than an episode's steps."""


class TaskEnv(gymnasium.Env[str, str]):
    """An environment over tasks. Subclasses define `turn`, `begin` if an episode has a state, and `score_so_far` if an episode
    without an answer may have a score or a negative part.

    `reset(options={"task": Task})` sets the task. Without options, `draw` makes one if it is set. `step` follows gymnasium
    and takes the text of a turn. `respond` takes a parsed turn. Both call `turn`.
    """

    metadata = {"render_modes": []}
    draw: Callable[[random.Random], Task] | None = None
    """Makes a task for a `reset` without one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("reset", "begin", "step", "respond", "observe", "turn", "score_so_far"):
            if inspect.iscoroutinefunction(getattr(cls, name)):
                raise ValueError(f"{cls.__name__}.{name} must not be async; steps run in threads, so block inside it")

    def __init__(self) -> None:
        self.observation_space = ANY_TEXT
        self.action_space = ANY_TEXT
        self.task: Task | None = None
        self.turns = 0
        self.characters = 0
        self.answer = ""
        """The answer of the last turn without its calls, empty for an unreadable or unfinished one."""
        self.servers = McpServers()
        """The servers of `mcp-per-episode:` tools, which `close` ends."""

    def close(self) -> None:
        with stop_clock():  # the episode has its score
            self.servers.close()
        super().close()

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        """Return the result of a readable turn: `self.end(score)`, `self.truncate(limit)` or
        `self.continue_with(messages)`.

        `parsed.answer` has no tool calls, and `parsed.calls` no calls of shared tools. A turn with only such calls reaches
        `observe` only, and so does any turn with calls if all tools of the task are shared.
        """
        raise NotImplementedError

    def observe(self, parsed: ParsedTurn) -> None:
        """Record a readable turn before it is answered, for environments that score all of the model's text."""

    def write_files(self, folder: Path) -> None:
        """Write the episode's files for an agent, which works in this folder."""

    def read_files(self, folder: Path) -> None:
        """Take over the files that an agent leaves in the folder. A model wrote them: follow no link, and limit the size."""

    def begin(self, task: Task) -> None:
        """Prepare an episode of a task, at the end of `reset`."""

    def is_last(self, task: Task) -> bool:
        """Return whether no turn may follow the present one."""
        limit = task.env.settings.max_turns
        return limit is not None and self.turns >= limit

    def score_so_far(self, task: Task) -> Score:
        """Return the score of the episode without an answer."""
        return binary_score(False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        unknown = set(options or ()) - {"task"}
        if unknown:
            raise ValueError(f"unknown reset options {sorted(unknown)}; use only 'task'")
        task = (options or {}).get("task")
        if task is None and self.draw is not None:
            task = self.draw(random.Random(int(self.np_random.integers(2**62))))
        if not isinstance(task, Task):
            raise ValueError(f"options['task'] must be a Task, not {task!r}")
        self.servers.close()
        self.task, self.turns, self.characters, self.answer = task, 0, 0, ""
        self.begin(task)
        return last_user_text(task), {"key": task.key}

    def step(self, action: str) -> GymStep:
        return to_gymnasium(self.respond(parse_turn(action, thinks=self._opened.thinks)))

    def respond(self, parsed: ParsedTurn) -> StepResult:
        """Return the result of a model's turn: the end of the episode, or the next messages.

        No text inside a call is an answer, since a chat client shows only the text around calls.
        """
        task = self._opened
        self.turns += 1
        self.characters += len(parsed.text)
        parsed = replace(parsed, answer=parsed.content)
        self.answer = parsed.answer
        if not parsed.readable:
            detail = "the reasoning was not closed" if task.thinks else "reasoning, but thinking is off"
            return self.end(score_unreadable_turn(self._score_without_answer(task), detail))
        self.observe(parsed)
        settings = task.env.settings
        tools = shared_tools(settings.tools, timeout_s=settings.tool_timeout_s, episode_servers=self.servers)
        if tools and parsed.calls and not all(self._own_calls(task, parsed, tools)):
            return self.use_shared_tools(task, parsed, tools)
        return self.turn(task, parsed) if settings.reward is None else self.end(judge(task, parsed.answer))

    def _own_calls(self, task: Task, parsed: ParsedTurn, tools: Mapping[str, EnvTool]) -> list[bool]:
        """Return which calls the environment answers itself. Without tools besides shared ones it answers none."""
        owns = any(tool["function"]["name"] not in tools for tool in task.tools)
        return [owns and not (isinstance(call, Call) and call.name in tools) for call in parsed.calls]

    def _score_without_answer(self, task: Task) -> Score:
        return self.score_so_far(task) if task.env.settings.reward is None else judge(task, "")

    @property
    def _opened(self) -> Task:
        if self.task is None:
            raise RuntimeError("no episode is running; call reset before step")
        return self.task

    def use_shared_tools(self, task: Task, parsed: ParsedTurn, tools: Mapping[str, EnvTool]) -> StepResult:
        """Answer each call by its owner, or by an error if it is unknown or unreadable. The last turn may not call tools."""
        is_own = self._own_calls(task, parsed, tools)
        own = tuple(compress(parsed.calls, is_own))
        result = self.turn(task, replace(parsed, calls=own)) if own else self.continue_with(())
        if result.done:
            return result
        if self.turns >= task.env.settings.tool_turns:
            return self.truncate(f"after {self.turns} turns without an answer")
        shared = [call for call, mine in zip(parsed.calls, is_own, strict=True) if not mine]
        answers = iter(answer_each(shared, lambda call: answer_call(call, tools)))
        told = (message for message in result.messages if message["role"] == "tool")
        unanswered: Message = {"role": "tool", "content": UNANSWERED}
        messages = [
            next(told, unanswered) if mine else {"role": "tool", "content": next(answers)[:MAX_RESULT_CHARACTERS]}
            for mine in is_own
        ]
        return self.continue_with([*messages, *(message for message in result.messages if message["role"] != "tool")])

    def truncate(self, limit: str, text: str = "") -> StepResult:
        """End an episode at a limit, between two turns or within the unfinished turn `text`."""
        if self.task is None:
            raise RuntimeError("there is no episode to truncate; call reset first")
        self.turns += bool(text)
        self.characters += len(text)
        self.answer = ""
        score = self._score_without_answer(self.task)
        parts = score.parts | ({FORMAT: 0.0} if text else {})
        detail = ": ".join(part for part in (f"truncated {limit}", score.detail) if part)
        return self.end(replace(score, parts=parts, detail=detail), truncated=True)

    def end(self, score: Score, *, truncated: bool = False) -> StepResult:
        """End the episode. The reward is the weighted sum of the parts. Without weights it is the part `correct`, plus the
        part `judge` if there is a judge, or the sum of the parts of the user's function. Set `truncated` if a limit ends the
        episode.
        """
        if not isinstance(score, Score):
            raise ValueError(
                f"end takes a Score, not {score!r:.100}; use for example binary_score(True) of temper.rewards.score"
            )
        assert self.task is not None
        task, self.task = self.task, None
        settings = task.env.settings
        if settings.compares:
            score = replace(score, evidence=score.evidence | {JUDGED: self.answer})
        elif settings.judge is not None:
            verdict = judge_answer(settings.judge, task, self.answer)
            evidence = score.evidence | verdict.costs
            score = replace(score, parts=score.parts | {JUDGE: verdict.value}, evidence=evidence)
        usual = WEIGHTS | {JUDGE: 1.0} if settings.reward is None else dict.fromkeys(score.parts, 1.0)
        if settings.length_limit is not None:
            score = score.with_parts({LENGTH: brevity(self.characters, limit=settings.length_limit)})
        if truncated:
            score = replace(score, outcome=Outcome.TRUNCATED)
        reward = weigh_reward(score.parts, settings.weights or usual)
        return StepResult(reward=reward, done=True, truncated=truncated, score=score)

    def continue_with(self, messages: Sequence[Message]) -> StepResult:
        """Continue the episode: the model sees these messages and takes its next turn."""
        return StepResult(messages=tuple(messages))


def answer_each(
    calls: Sequence[Call | BadCall], answer: Callable[[Call | BadCall], str], *, most: int = MAX_CALLS
) -> list[str]:
    """Return one answer per call, in order. Calls beyond the first `most` are not executed and get an error."""
    return [answer(call) if number < most else TOO_MANY for number, call in enumerate(calls)]


def score_unreadable_turn(score: Score, detail: str) -> Score:
    """Return the score of an unreadable turn from the score before it. No answer is right."""
    parts = score.parts | {CORRECT: min(score.parts.get(CORRECT, 0.0), 0.0), FORMAT: 0.0}
    return replace(score, outcome=Outcome.WRONG, parts=parts, detail=detail)


def last_user_text(task: Task) -> str:
    for message in reversed(task.messages):
        if message["role"] == "user":
            return str(message["content"])
    raise ValueError(f"task {task.label} has no user message")
