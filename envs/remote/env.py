"""Environments on an HTTP server (the protocol of NeMo-Gym's resource servers).

Options: `url`, `protocol`, and the fields of `envs.remote.client.Server`. Tasks are rows of data: `responses_create_params`
with `input` (and `tools`), and further fields for the server, which gets the whole row.

- `verify`: `POST /seed_session` with the row. Each tool call is a `POST /<tool>` with its arguments, whose reply the model
  sees. At the end `POST /verify` with the row and `response` (all turns) returns `reward`.
- `step`: `POST /reset` with the row may return a first `observation`. Each turn is a `POST /step` with the row, `response`
  (this turn), `action` (its text) and the `session_id` of `reset`, if any. The reply has `observation`, `reward`,
  `terminated`, `truncated`, and the results of calls in `info.tool_outputs`. Rewards add up.

Each request carries the session's cookies. The model sees its own mistakes: an unknown tool, or arguments that a tool
refuses with status 4xx or fails on with 500. Every other failure is an `EnvironmentFault`. The reward becomes the part
`correct`. A reward of 1 or more is right.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, get_args

from temper.envs.core.bounds import only_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.row_format import RowFormat, has_fields
from temper.envs.core.step_result import StepResult, tool_span
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn
from temper.envs.remote.client import MAX_RESULT_CHARACTERS, Server, Session, as_text, read_number, writable
from temper.envs.remote.responses_api import PARAMS, ResponseTurn, load, response
from temper.envs.task_env import TaskEnv
from temper.rewards.score import CORRECT, FORMAT, TOOL_ERRORS, Outcome, Score, error_rate

ServerProtocol = Literal["verify", "step"]
MAX_TURNS, MAX_CALLS = 16, 16


class HttpEnv(TaskEnv):
    """One session of a server. The episode is truncated after `max_turns` turns (16)."""

    session: Session | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        assert self.task is not None
        row, kind = self.task.spec["row"], self.task.env.options
        self.close()
        self.session = Session(Server.from_options(kind["server"]))
        self.turns_so_far: list[ResponseTurn] = []
        self.calls = self.refused = self.unreadable = 0
        self.total, self.ids = 0.0, {}
        if kind["protocol"] == "verify":
            self.session.post_json("seed_session", row, repeatable=True)
            return observation, info
        first = self.session.post_json("reset", row, repeatable=True)
        if first.get("session_id") is not None:
            self.ids = {"session_id": first["session_id"]}
        shown = _shown(first)
        return (shown[-1]["content"] if shown else observation), info | {"messages": shown}

    def observe(self, parsed: ParsedTurn) -> None:
        self.turns_so_far.append(ResponseTurn(text=writable(parsed.content).strip(), calls=()))

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        beyond = BadCall(error=f"error: only {MAX_CALLS} calls are made in a turn")
        calls_of_turn = tuple(call if number < MAX_CALLS else beyond for number, call in enumerate(parsed.calls))
        self.unreadable += sum(isinstance(call, BadCall) for call in calls_of_turn)
        calls = tuple(
            (f"call_{self.calls + number}", call) for number, call in enumerate(calls_of_turn) if isinstance(call, Call)
        )
        self.calls += len(calls_of_turn)
        text = self.turns_so_far[-1].text
        if task.env.options["protocol"] == "step":
            return self._step(task, writable(parsed.answer), ResponseTurn(text=text, calls=calls))
        results = [self._result(task, call) for call in calls_of_turn]
        outputs = tuple(result for call, result in zip(calls_of_turn, results, strict=True) if isinstance(call, Call))
        self.turns_so_far[-1] = ResponseTurn(text=text, calls=calls, outputs=outputs)
        if calls_of_turn and not self.is_last(task):
            return self.continue_with([{"role": "tool", "content": result} for result in results])
        self._verify(task)
        return self.truncate(f"after {self.turns} turns") if calls_of_turn else self.end(self.score_so_far(task))

    def _result(self, task: Task, call: Call | BadCall) -> str:
        with tool_span(call):
            return call.error if isinstance(call, BadCall) else self._call(task, call)

    def _call(self, task: Task, call: Call) -> str:
        assert self.session is not None
        names = [tool["function"]["name"] for tool in task.tools]
        if call.name not in names:
            self.refused += 1
            return f"error: unknown tool; there are {', '.join(names) or 'none'}"
        reply = self.session.post(call.name, call.arguments, repeatable=False)
        self.refused += reply.status >= 400
        return reply.text[:MAX_RESULT_CHARACTERS]

    def score_so_far(self, task: Task) -> Score:
        errors = error_rate(self.refused + self.unreadable, self.calls)
        parts = {CORRECT: self.total, FORMAT: float(not self.unreadable), TOOL_ERRORS: errors}
        outcome = Outcome.OK if self.total >= 1.0 else Outcome.WRONG
        return Score(outcome=outcome, parts=parts, detail=f"reward {self.total:g}")

    def _verify(self, task: Task) -> None:
        assert self.session is not None
        row = task.spec["row"]
        reply = self.session.post_json(
            "verify", row | {"response": response(self.turns_so_far, row[PARAMS])}, repeatable=True
        )
        if reply.get("_ng_failure_class"):
            raise EnvironmentFault(f"verify failed: {reply['_ng_failure_class']}")
        self.total = read_number(reply.get("reward"), "reward")

    def _step(self, task: Task, answer: str, turn: ResponseTurn) -> StepResult:
        assert self.session is not None
        row = task.spec["row"]
        body = row | {"response": response([turn], row[PARAMS]), "action": answer} | self.ids
        reply = self.session.post_json("step", body, repeatable=False)
        self.total += read_number(reply.get("reward"), "reward")
        terminated, truncated = reply.get("terminated", False), reply.get("truncated", False)
        if not isinstance(terminated, bool) or not isinstance(truncated, bool):
            raise EnvironmentFault(
                f"step: terminated is {terminated!r}, truncated {truncated!r}; both must be booleans"
            )
        if terminated or truncated:
            return self.end(self.score_so_far(task), truncated=not terminated)
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns")
        shown = _shown(reply)
        if not shown:
            raise EnvironmentFault("step: the episode has not ended, and there is no observation")
        return self.continue_with(shown)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        super().close()


def _shown(reply: dict[str, Any]) -> list[Message]:
    info = reply.get("info")
    outputs = info.get("tool_outputs") if isinstance(info, dict) else None
    messages = [{"role": "tool", "content": as_text(output.get("output"))} for output in outputs or () if output]
    if reply.get("observation") not in (None, ""):
        messages.append({"role": "user", "content": as_text(reply["observation"])})
    return messages


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    known = [setting.name for setting in fields(Server)]
    only_known(options, ("protocol", *known), "options")
    protocol = options.get("protocol", "verify")
    if protocol not in get_args(ServerProtocol):
        raise ValueError(f"options.protocol is {protocol!r}; set {' or '.join(get_args(ServerProtocol))}")
    server = {name: options[name] for name in known if name in options}
    Server.from_options(server)
    rows = RowFormat(name="nemo_gym", matches=has_fields(PARAMS), load=load)
    return replace(ENVIRONMENT, formats=(rows,), options={"server": server, "protocol": protocol})


ENVIRONMENT = EnvDefinition(
    id="http",
    entry_point="temper.envs.remote.env:HttpEnv",
    configure=configure,
    parts=(*PARTS, TOOL_ERRORS),
    max_turns=MAX_TURNS,
    replays=False,
)
