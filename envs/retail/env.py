"""The shop: an agent serves one customer with tools, and is scored by the final state of the database."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.core.bounds import require_choice, require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.row_format import LeftOut, Row, RowFormat, has_fields
from temper.envs.core.step_result import StepResult, tool_span
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn
from temper.envs.retail import rows
from temper.envs.retail.customer import OPENING, STOP, check_customer, has_simulated_customer, is_model, open_customer
from temper.envs.retail.database import FILES, open_database
from temper.envs.retail.outputs import outputs_in, takes_parts
from temper.envs.retail.reference import negatives, reference
from temper.envs.retail.tools import TRANSFER, Refusal, replay, run_call
from temper.envs.task_env import TaskEnv, answer_each
from temper.rewards.score import TOOL_ERRORS, Score, binary_score, error_rate

MAX_TURNS = 30
MAX_CALLS = 64
MAX_RESULT_CHARACTERS = 16_384
STATE, OUTPUTS = "state", "outputs"


class RetailEnv(TaskEnv):
    """An agent cancels, changes, exchanges and returns one customer's orders.

    A turn with calls is answered by one tool message per call, a turn without calls by the customer.

    The first user message is the whole instruction. The customer then agrees to everything, once, or in transcripts always.
    The next turn without calls ends the episode, and so does a transfer to a human or the turn limit (30). Calls of the last
    turn are executed.

    With the option `customer` the first user message is a greeting. A script then gives the instruction and agrees once, or
    a model plays the customer. Its reply with `STOP` ends the episode, and so does a turn without calls and words. An
    episode can be right only if the customer ended it. A transfer after the first reply also counts, if the reference
    actions contain one.

    A right episode leaves the database in the state that the reference actions leave, and the agent's answers contain every
    output, as `outputs_in` finds them. Parts: `state` (0 or 1), `outputs` (the share that was stated), `tool_errors` (the
    share of refused calls) and `format` (0 if a call was unreadable).
    """

    def begin(self, task: Task) -> None:
        try:
            self.database = rows.database_of(task)
        except ValueError as error:
            raise EnvironmentFault(str(error)) from error
        self.customer = open_customer(task)
        self.has_ended_well = not has_simulated_customer(task)
        self.said: list[str] = []
        self.answered_texts = 0
        self.transferred = False
        self.calls = self.refused = self.unreadable = 0

    def observe(self, parsed: ParsedTurn) -> None:
        self.said.append(parsed.content)

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        calls = parsed.calls
        results = answer_each(calls, self._answer, most=MAX_CALLS)
        if self.transferred:
            needed = any(action["name"] == TRANSFER for action in task.spec["actions"])
            self.has_ended_well |= needed and self.answered_texts > 0
            return self.end(self.score_so_far(task))
        reply = "" if calls else self._reply(task)
        if reply is None:
            return self.end(self.score_so_far(task))
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns")
        if calls:
            messages: list[Message] = [{"role": "tool", "content": it[:MAX_RESULT_CHARACTERS]} for it in results]
            return self.continue_with(messages)
        return self.continue_with([{"role": "user", "content": reply}])

    def _reply(self, task: Task) -> str | None:
        """Return the customer's reply to the new text, or None at the end of the dialogue."""
        text = "\n".join(self.said[self.answered_texts :]).strip()
        if has_simulated_customer(task) and not any(map(str.isalnum, text)):
            return None
        self.answered_texts = len(self.said)
        reply = self.customer.reply(text)
        self.has_ended_well |= STOP in reply
        return None if STOP in reply or not reply else reply

    def _answer(self, call: Call | BadCall) -> str:
        self.calls += 1
        self.unreadable += isinstance(call, BadCall)
        try:
            with tool_span(call):
                result = run_call(self.database, call)
        except Refusal as refusal:
            self.refused += 1
            return f"Error: {refusal}"
        self.transferred |= isinstance(call, Call) and call.name == TRANSFER
        return result

    def score_so_far(self, task: Task) -> Score:
        wanted = self.database.copy_initial()
        replay(wanted, task.spec["actions"])
        same = self.database.is_same_state(wanted)
        text, outputs = "\n".join(self.said), task.spec["outputs"]
        said = len(outputs_in(text, outputs, part=takes_parts(task)))
        score = binary_score(
            same and said == len(outputs) and self.has_ended_well,
            well_formed=self.unreadable == 0,
            detail=f"database {'as wanted' if same else 'differs'}, {said} of {len(outputs)} outputs stated"
            + ("" if self.has_ended_well else ", the customer did not end the dialogue"),
        )
        score.parts[STATE] = float(same)
        score.parts[OUTPUTS] = said / len(outputs) if outputs else 1.0
        score.parts[TOOL_ERRORS] = error_rate(self.refused, self.calls)
        return score


def with_folder(folder: Path, *, idle: str = "drop", outputs: str = "whole", customer: Any = None) -> EnvDefinition:
    """Return the environment whose rows use the database in this folder. Raise `ValueError` if it can't be read.

    Rows that are right without any action are dropped, unless `idle` is keep. The others are as in `configure`.
    """
    folder = folder.resolve()
    before = open_database(folder)

    def load(row: Row) -> Task:
        task = rows.load(row, folder=folder)
        after = before.copy_initial()
        replay(after, task.spec["actions"])
        if idle == "drop" and not task.spec["outputs"] and after.is_same_state(before):
            raise LeftOut("its reference actions change nothing, and it requires no output")
        if customer is None:
            return task
        opening = {"role": "user", "content": OPENING}
        return replace(task, messages=(task.messages[0], opening), full_request=task.messages)

    tau = RowFormat(name="tau", matches=has_fields("instruction", "actions"), load=load)
    options = {"database": str(folder)} | ({"outputs": outputs} if outputs == "part" else {})
    options |= {} if customer is None else {"customer": customer}
    return replace(ENVIRONMENT, formats=(tau,), in_folder=None, options=options, replays=not is_model(customer))


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    """Return the environment with these options.

    `database` is the folder of its database, by default the folder of the rows. `idle` decides whether rows stay (keep or
    drop) that are right without any action. `outputs` decides which outputs count: whole words among few numbers (whole), or
    any part of the text as in tau-bench (part). `customer` is script, or the settings of a server whose model plays the
    customer.
    """
    require_known(options, ("database", "idle", "outputs", "customer"), "options")
    folder, idle = options.get("database"), options.get("idle", "drop")
    outputs, customer = options.get("outputs", "whole"), options.get("customer")
    require_choice("options.idle", idle, ("drop", "keep"))
    require_choice("options.outputs", outputs, ("whole", "part"))
    check_customer(customer)
    made = partial(with_folder, idle=idle, outputs=outputs, customer=customer)
    return replace(ENVIRONMENT, in_folder=made) if folder is None else made(Path(str(folder)))


ENVIRONMENT = EnvDefinition(
    id="retail",
    entry_point="temper.envs.retail.env:RetailEnv",
    reference=reference,
    negatives=negatives,
    configure=configure,
    in_folder=with_folder,
    companions=FILES,
    parts=(*PARTS, STATE, OUTPUTS, TOOL_ERRORS),
    max_turns=MAX_TURNS,
)
