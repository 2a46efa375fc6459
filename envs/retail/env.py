"""The shop: an agent serves one user with sixteen tools, and is judged by what it leaves in the database."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from envs.core.bounds import only_known
from envs.core.definition import PARTS, EnvDefinition
from envs.core.errors import EnvironmentFault
from envs.core.row_format import RowFormat, has_fields
from envs.core.step_result import StepResult
from envs.core.task import Message, Task
from envs.core.turn_text import BadCall, Call, ParsedTurn
from envs.retail import rows
from envs.retail.database import Database, Shop, open_shop
from envs.retail.gold import corruptions, gold
from envs.retail.tools import TRANSFER, replay, run_tool
from envs.retail.tools_read import Refusal
from envs.task_env import TaskEnv
from rewards.verdict import TOOL_ERRORS, Verdict, share_of, verdict

MAX_CALLS = 64
MAX_RESULT_CHARACTERS = 16_384
USER_REPLY = "Yes, please go ahead. I have nothing to add."
STATE, OUTPUTS = "state", "outputs"


class RetailEnv(TaskEnv):
    """Turns with calls are answered by one tool message a call; a turn without, by a user who agrees to everything.

    The user answers once, or where turns are given to all of them; the next turn without calls ends the episode. So does
    a transfer to a human, and `max_turns` turns (30); the calls of the last turn are carried out.

    Right is an episode that leaves the database as the gold actions leave a fresh one, and in which the agent's text
    (its answers, without thoughts and calls) holds every output, commas and letter case ignored. Parts: `state` (0 or
    1), `outputs` (the share that was said), `tool_errors` (the share of calls that were refused), `format` (0 where a
    call could not be read).
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Open the task's shop. Raise `EnvironmentFault` where it can't be read."""
        observation = super().reset(seed=seed, options=options)
        assert self.task is not None
        self.database = Database(_shop(self.task))
        settings = self.task.env.settings
        self.replies = (settings.max_turns or 0) if settings.scripted else rows.USER_REPLIES
        self.said: list[str] = []
        self.transferred = False
        self.calls = self.refused = self.unreadable = 0
        return observation

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        self.said.append(parsed.said)
        calls = parsed.calls
        results = [self._answer(call) for call in calls[:MAX_CALLS]]
        if len(calls) > MAX_CALLS:
            results.append(f"Error: more than {MAX_CALLS} calls in a turn; the others were not carried out")
        if self.transferred or (not calls and self.replies <= 0):
            return self.end(self.standing(task))
        if self.is_last(task):
            return self.cut(f"after {self.turns} turns")
        if calls:
            messages: list[Message] = [{"role": "tool", "content": it[:MAX_RESULT_CHARACTERS]} for it in results]
            return self.go_on(messages)
        self.replies -= 1
        return self.go_on([{"role": "user", "content": USER_REPLY}])

    def _answer(self, call: Call | BadCall) -> str:
        self.calls += 1
        self.unreadable += isinstance(call, BadCall)
        try:
            result = run_tool(self.database, call)
        except Refusal as refusal:
            self.refused += 1
            return f"Error: {refusal}"
        self.transferred |= isinstance(call, Call) and call.name == TRANSFER
        return result

    def standing(self, task: Task) -> Verdict:
        """Judge the database as it is now, and what has been said."""
        wanted = Database(self.database.shop)
        replay(wanted, task.spec["actions"])
        same = self.database.same_state(wanted)
        text, outputs = "\n".join(self.said), task.spec["outputs"]
        said = sum(rows.says(text, output) for output in outputs)
        judged = verdict(
            same and said == len(outputs),
            well_formed=self.unreadable == 0,
            detail=f"database {'as wanted' if same else 'differs'}, {said} of {len(outputs)} outputs said",
        )
        judged.parts[STATE] = float(same)
        judged.parts[OUTPUTS] = said / len(outputs) if outputs else 1.0
        judged.parts[TOOL_ERRORS] = share_of(self.refused, self.calls)
        return judged


def _shop(task: Task) -> Shop:
    try:
        return rows.shop_of(task)
    except ValueError as error:
        raise EnvironmentFault(str(error)) from error


def beside(folder: Path) -> EnvDefinition:
    """Return the environment whose rows find the database in this folder. Raise `ValueError` where it can't be read."""
    open_shop(folder.resolve())
    tau = RowFormat(name="tau", matches=has_fields("instruction", "actions"), load=partial(rows.load_from, folder))
    return replace(ENVIRONMENT, formats=(tau,), beside=None, options={"database": str(folder.resolve())})


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    """Return the environment with the database that the option `database` names; without it that beside the rows."""
    only_known(options, ("database",), "options")
    folder = options.get("database")
    return ENVIRONMENT if folder is None else beside(Path(str(folder)).resolve())


ENVIRONMENT = EnvDefinition(
    id="retail",
    entry_point="envs.retail.env:RetailEnv",
    gold=gold,
    corruptions=corruptions,
    configure=configure,
    beside=beside,
    companions=("users.json", "orders.json", "products.json", "tools.json", "policy.md"),
    parts=(*PARTS, STATE, OUTPUTS, TOOL_ERRORS),
    max_turns=rows.MAX_TURNS,
)
