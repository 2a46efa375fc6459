"""Environments on a resources server of NeMo-Gym.

Options: `url`, and the other fields of `envs.core.http_client.Server`, or `agent` and `python` (`gym_agent.py`). Tasks are
rows of data: `responses_create_params` with `input` (and `tools`), and further fields for the server, which gets the whole row.

An episode begins with `POST /seed_session` with the row. Each tool call is a `POST /<tool>` with its arguments, whose reply
the model sees. At the end `POST /verify` with the row and `response` (all turns) returns `reward`.

Each request carries the session's cookies. The model sees its own mistakes: an unknown tool, or arguments that a tool
refuses with status 4xx or fails on with 500. Every other failure is an `EnvironmentFault`, because the model is not to
blame. The reward becomes the part `correct`, which is right from 1 on.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from temper.envs.core.bounds import require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.http_client import MAX_RESULT_CHARACTERS, Server, Session, read_number
from temper.envs.core.row_format import RowFormat, has_fields
from temper.envs.core.step_result import StepResult, tool_span
from temper.envs.core.task import Task
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, to_writable
from temper.envs.remote.gym_agent import with_agent
from temper.envs.remote.responses_api import PARAMS, ResponseTurn, load, response
from temper.envs.task_env import TaskEnv
from temper.rewards.score import CORRECT, FORMAT, TOOL_ERRORS, Outcome, Score, error_rate

MAX_TURNS, MAX_CALLS = 16, 16


class NemoGymEnv(TaskEnv):
    """One session of a server. The episode is truncated after `max_turns` turns (16)."""

    session: Session | None = None

    def begin(self, task: Task) -> None:
        self.close()
        self.session = Session(Server.from_options(task.env.options["server"]))
        self.turns_so_far: list[ResponseTurn] = []
        self.calls = self.refused = self.unreadable = 0
        self.reward = 0.0
        self.session.post_json("seed_session", task.spec["row"])

    def observe(self, parsed: ParsedTurn) -> None:
        self.turns_so_far.append(ResponseTurn(text=to_writable(parsed.content).strip()))

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        beyond = BadCall(error=f"error: only {MAX_CALLS} calls are made in a turn")
        calls_of_turn = tuple(call if number < MAX_CALLS else beyond for number, call in enumerate(parsed.calls))
        self.unreadable += sum(isinstance(call, BadCall) for call in calls_of_turn)
        calls = tuple(
            (f"call_{self.calls + number}", call) for number, call in enumerate(calls_of_turn) if isinstance(call, Call)
        )
        self.calls += len(calls_of_turn)
        results = [self._result(task, call) for call in calls_of_turn]
        outputs = tuple(result for call, result in zip(calls_of_turn, results, strict=True) if isinstance(call, Call))
        self.turns_so_far[-1] = replace(self.turns_so_far[-1], calls=calls, outputs=outputs)
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
        parts = {CORRECT: self.reward, FORMAT: float(not self.unreadable), TOOL_ERRORS: errors}
        outcome = Outcome.OK if self.reward >= 1.0 else Outcome.WRONG
        return Score(outcome=outcome, parts=parts, detail=f"reward {self.reward:g}")

    def _verify(self, task: Task) -> None:
        assert self.session is not None
        row = task.spec["row"]
        reply = self.session.post_json("verify", row | {"response": response(self.turns_so_far, row[PARAMS])})
        if reply.get("_ng_failure_class"):
            raise EnvironmentFault(f"verify failed: {reply['_ng_failure_class']}")
        self.reward = read_number(reply.get("reward"), "reward")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        super().close()


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    if "agent" in options:
        return with_agent(ENVIRONMENT, options)
    require_known(options, [setting.name for setting in fields(Server)], "options")
    Server.from_options(options)
    return replace(ENVIRONMENT, options={"server": dict(options)})


ENVIRONMENT = EnvDefinition(
    id="nemo_gym",
    entry_point="temper.envs.remote.nemo_gym:NemoGymEnv",
    formats=(RowFormat(name="nemo_gym", matches=has_fields(PARAMS), load=load, questions=()),),
    configure=configure,
    parts=(*PARTS, TOOL_ERRORS),
    max_turns=MAX_TURNS,
    replays=False,
)
