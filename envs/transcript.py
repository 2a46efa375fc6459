"""Score given turns without a model, by the code that training uses."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temper.envs.core.errors import Failure, failure_of
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import UNLIMITED
from temper.envs.core.turn_text import (
    CLOSE_CALL,
    CLOSE_THINKING,
    OPEN_CALL,
    OPEN_THINKING,
    ParsedTurn,
    make_call_turn,
    parse_turn,
    turn_text,
)
from temper.envs.env_episode import EnvEpisode
from temper.rewards.score import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptScore:
    """The score of a transcript. `reward` is None exactly if `failure` is set."""

    reward: float | None
    score: Score = field(default_factory=Score)
    failure: Failure | None = None
    seconds: float = 0.0


def parse_own_turn(text: str) -> ParsedTurn:
    """Return a turn that may begin with thinking, with or without the opening tag."""
    tagged = OPEN_THINKING in text or CLOSE_THINKING in text
    return parse_turn(text if tagged else CLOSE_THINKING + text, thinks=True)


Play = Callable[[list[str]], str | None]
"""Returns the next turn from the environment's messages so far, or None to stop."""


def score_turns(
    task: Task, turns: Sequence[str], *, read: Callable[[str], ParsedTurn] = parse_own_turn
) -> TranscriptScore:
    """Run the turns as a complete episode. Never raises: a fault becomes a typed failure."""
    left = iter(turns)
    settings = replace(task.env.settings, max_turns=len(turns), tool_turns=len(turns), scripted=True)
    task = replace(task, thinking=UNLIMITED, env=replace(task.env, settings=settings))
    return score_play(task, lambda _replies: next(left, None), read=read)


def score_play(task: Task, play: Play, *, read: Callable[[str], ParsedTurn] = parse_own_turn) -> TranscriptScore:
    """Run an episode with the turns that `play` returns. Never raises: a fault becomes a typed failure."""
    start = time.monotonic()
    try:
        scored = _score_play(task, play, read)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an environment may raise anything, even SystemExit
        scored = TranscriptScore(reward=None, failure=failure_of(error))
    return replace(scored, seconds=time.monotonic() - start)


def _score_play(task: Task, play: Play, read: Callable[[str], ParsedTurn]) -> TranscriptScore:
    episode, replies = EnvEpisode(task), list[str]()
    try:
        episode.begin()
        while (text := play(replies)) is not None:
            result = episode.step(read(text))
            if result.done:
                break
            replies += [str(message.get("content")) for message in result.messages]
        else:
            result = episode.truncate("after the last given turn")
    finally:
        episode.close()
    return TranscriptScore(reward=result.reward, score=result.score)


def read_transcript_turns(response: dict[str, Any]) -> list[str]:
    """Return the model's turns in a response row: `response` (text), `messages`, or `calls` followed by `response`.

    Raise `ValueError` if the row has none of them or one is malformed.
    """
    text, calls, messages = response.get("response"), response.get("calls"), response.get("messages")
    if messages is not None:
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ValueError("field 'messages' must be a list of chat messages")
        texts = [_text_of_message(message) for message in messages if message.get("role") == "assistant"]
        if not texts:
            raise ValueError("field 'messages' has no assistant message")
        return texts
    turns = []
    if calls is not None:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise ValueError("field 'calls' must be a list of {name, arguments}")
        turns.append(_text_of_message({"content": "", "tool_calls": [{"function": call} for call in calls]}))
    if text is not None or not turns:
        if not isinstance(text, str):
            raise ValueError(f"the row has {sorted(response)}; add 'response' (text), 'messages' or 'calls'")
        turns.append(text)
    return turns


def _text_of_message(message: Message) -> str:
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str) or not isinstance(calls, list):
        raise ValueError("an assistant message needs text in 'content' and a list in 'tool_calls'")
    written = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        name, arguments = str(function.get("name", "")), function.get("arguments", function.get("kwargs", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                written.append(f"{OPEN_CALL}{arguments}{CLOSE_CALL}")
                continue
        written.append(turn_text(make_call_turn([(name, arguments)]), thinks=False))
    return content + "".join(written)
