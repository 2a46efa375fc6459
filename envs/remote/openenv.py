"""Environments on a server of OpenEnv. Each episode is a session: one WebSocket, `reset`, then a `step` for each turn.

Options: `prompt` is the instruction before the first observation. `action` is the field of the action that holds the
model's answer. Without it the answer must be the action as a JSON object. `observation` is the field that the model sees,
by default all fields as JSON. `envs.core.http_client.Server` describes `url`, `hosts`, `timeout_s`, `max_bytes`,
`key_variable` and `key_header`. Nothing is retried.

Without data the tasks are seeds, which `reset` gets. A row has a `prompt`, and may have `reset`: the arguments of `reset`.
Rewards add up to the part `correct`, which is right from 1 on. If the server refuses an action, that is the model's mistake,
which it sees. Every other failure is an `EnvironmentFault`.
"""

import json
import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from temper.envs.core.bounds import require_known, require_type
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.http_client import MAX_RESULT_CHARACTERS, Server, read_number
from temper.envs.core.row_format import Row, RowFormat, field, has_fields
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn, to_writable
from temper.envs.task_env import TaskEnv
from temper.rewards.json_answers import NoJson, json_answer
from temper.rewards.score import CORRECT, FORMAT, Outcome, Score, error_rate

SERVER = ("url", "hosts", "timeout_s", "max_bytes", "key_variable", "key_header")
"""Options that are fields of `Server`."""
BAD_ACTIONS = "bad_actions"
REFUSED = "VALIDATION_ERROR"
"""The server's code for an action that its schema refuses."""
FULL = "; if the server is full, raise its max_concurrent_envs to the number of episodes in flight"
MAX_TURNS, CLOSE_S, SEEDS = 16, 1.0, 2**31


class RefusedAction(ValueError):
    """An action that the server refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An observation with its reward. `done` is True at the end of the episode."""

    observation: dict[str, Any]
    reward: float
    done: bool


class OpenEnvSession:
    """One session of a server."""

    def __init__(self, server: Server) -> None:
        """Connect. Raise `EnvironmentFault` if the server is unreachable."""
        self._url = f"ws{server.url.removeprefix('http').rstrip('/')}/ws"
        self._timeout_s = server.timeout_s
        host, port = server.address
        try:
            connection = socket.create_connection((host, port), server.timeout_s)
            connection.settimeout(None)
            self._socket = connect(
                self._url,
                sock=connection,  # with a connection of ours it follows no redirect
                additional_headers=server.key(),
                open_timeout=server.timeout_s,
                close_timeout=CLOSE_S,
                max_size=server.max_bytes,
                proxy=None,
                legacy=True,  # no context manager: the session ends in `close`
            )
        except (OSError, ValueError, WebSocketException) as error:
            raise EnvironmentFault(f"{self._url}: no connection: {error}") from error

    def request(self, kind: str, data: Mapping[str, Any]) -> Observation:
        """Return the observation after a `reset` or a `step`. Raise `RefusedAction`, or `EnvironmentFault` for any other
        failure.
        """
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            reply = json.loads(self._socket.recv(self._timeout_s))
        except (OSError, WebSocketException) as error:
            refused = FULL if kind == "reset" and isinstance(error, ConnectionClosed) else ""
            raise EnvironmentFault(f"{self._url}: {kind}: {type(error).__name__}: {error}{refused}") from error
        except (ValueError, RecursionError) as error:
            raise EnvironmentFault(f"{self._url}: {kind}: the reply is not JSON") from error
        match reply:
            case {"type": "observation", "data": {"observation": dict(seen), "done": bool(done), **others}}:
                paid = others.get("reward")
                reward = float(paid or 0) if paid is None or isinstance(paid, bool) else read_number(paid, "reward")
                return Observation(observation=seen, reward=reward, done=done)
            case {"type": "error", "data": {"code": str(code), "errors": [*errors]}} if (
                code == REFUSED and kind == "step"
            ):
                if all(_is_of_action(error, data) for error in errors):
                    raise RefusedAction("; ".join(map(_reason, errors))[:MAX_RESULT_CHARACTERS])
        raise EnvironmentFault(f"{self._url}: {kind}: {json.dumps(reply)[:500]}{FULL if kind == 'reset' else ''}")

    def close(self) -> None:
        with suppress(OSError, WebSocketException):
            self._socket.send(json.dumps({"type": "close"}))
            self._socket.recv(CLOSE_S)  # if the server does not close first, it logs an error
        self._socket.close()


def _is_of_action(error: Any, action: Mapping[str, Any]) -> bool:
    """Return whether an error is about the action: the server reports its own invalid observations in the same way."""
    match error:
        case {"loc": [field, *_], "type": str(kind)}:
            return field in action or kind in ("missing", "extra_forbidden")
    return False


def _reason(error: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {error.get('msg')}"


class OpenEnvEnv(TaskEnv):
    """One session. The episode is truncated after `max_turns` turns (16), with the rewards so far."""

    session: OpenEnvSession | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        assert self.task is not None
        self.close()
        self.session = OpenEnvSession(Server.from_options(self.task.env.options["server"]))
        self.total, self.refused = 0.0, 0
        first = self.session.request("reset", self.task.spec["reset"])
        return observation, info | {"messages": [self._shown(first)]}

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        assert self.session is not None
        try:
            seen = self.session.request("step", _action(parsed.answer, task.env.options["action"]))
        except (RefusedAction, NoJson) as error:
            self.refused += 1
            shown: Message = {"role": "user", "content": f"error: {error}"}
        else:
            self.total += seen.reward
            if seen.done:
                return self.end(self.score_so_far(task))
            shown = self._shown(seen)
        return self.truncate(f"after {self.turns} turns") if self.is_last(task) else self.continue_with([shown])

    def score_so_far(self, task: Task) -> Score:
        parts = {
            CORRECT: self.total,
            FORMAT: float(not self.refused),
            BAD_ACTIONS: error_rate(self.refused, self.turns),
        }
        outcome = Outcome.OK if self.total >= 1.0 else Outcome.WRONG
        return Score(outcome=outcome, parts=parts, detail=f"reward {self.total:g}")

    def _shown(self, seen: Observation) -> Message:
        assert self.task is not None
        name = self.task.env.options["observation"]
        if name is not None and name not in seen.observation:
            raise EnvironmentFault(f"options.observation={name}: the server has {', '.join(seen.observation)}")
        value = seen.observation if name is None else seen.observation[name]
        text = value if isinstance(value, str) else json.dumps(value)
        return {"role": "user", "content": text[:MAX_RESULT_CHARACTERS]}

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        super().close()


def _action(answer: str, field_of_text: str | None) -> dict[str, Any]:
    """Return the action of an answer. Raise `NoJson` if it must be a JSON object and is none."""
    if field_of_text is not None:
        return {field_of_text: to_writable(answer)}
    found = json_answer(answer)
    if not isinstance(found, dict):
        raise NoJson("an action is a JSON object")
    return found


def generate(rng: random.Random, level: int, *, prompt: str) -> Task:
    """Return a task with a seed for the server. There is one level."""
    return _task(prompt, {"seed": rng.randrange(SEEDS)})


def load(row: Row) -> Task:
    reset = row.get("reset", {})
    if not isinstance(reset, dict):
        raise ValueError(f"field 'reset' must hold the arguments of reset, not {reset!r:.80}")
    return _task(field(row, "prompt", str), reset)


def _task(prompt: str, reset: dict[str, Any]) -> Task:
    """Return a task. The arguments of `reset` are part of its request, so that seeds can be held out."""
    messages: tuple[Message, ...] = ({"role": "user", "content": prompt},)
    return Task(
        messages=messages,
        spec={"reset": reset},
        full_request=(*messages, {"role": "user", "content": json.dumps(reset)}) if reset else (),
    )


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, ("prompt", "action", "observation", *SERVER), "options")
    texts = {name: options.get(name) for name in ("prompt", "action", "observation")}
    for name, text in texts.items():
        if text is not None:
            require_type(f"options.{name}", text, str)
    server = {name: options[name] for name in SERVER if name in options}
    Server.from_options(server)
    prompt = texts.pop("prompt")
    return replace(
        ENVIRONMENT,
        generate=None if prompt is None else partial(generate, prompt=prompt),
        options=texts | {"server": server},
    )


ENVIRONMENT = EnvDefinition(
    id="openenv",
    entry_point="temper.envs.remote.openenv:OpenEnvEnv",
    formats=(RowFormat(name="openenv", matches=has_fields("prompt"), load=load),),
    levels=1,
    configure=configure,
    parts=(*PARTS, BAD_ACTIONS),
    max_turns=MAX_TURNS,
    replays=False,
)
