"""Rows of any data as prompts. The function of `envs.NAME.reward` scores the answers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from temper.envs.core.bounds import require_known
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.prompts import NAMES, QUESTION, USUAL, Prompts, read_prompts
from temper.envs.core.row_format import HasFields, Row, RowFormat
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.score import Score

TEXTS = (QUESTION, "prompt", "problem", "instruction", "messages", "conversations")
"""Fields that may hold the prompt, in order of preference: a text, or chat messages that end with the user's."""


class RowsEnv(TaskEnv):
    """Single turn, apart from turns with tool calls. `envs.NAME.reward` or `envs.NAME.judge` scores the answer."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        return self.end(Score(detail=f"answered {parsed.answer[:80]}"))

    def score_so_far(self, task: Task) -> Score:
        return Score()


def load(row: Row, prompts: Prompts = USUAL) -> Task:
    """Make a task of a row. Raise `ValueError` if its prompt is neither text nor a list of messages."""
    asked = next((row[name] for name in TEXTS if row.get(name) is not None), None)
    if not isinstance(asked, str) or not asked.strip():
        raise ValueError(f"the prompt must be a text, or messages that end with the user's, not {asked!r:.80}")
    return Task(messages=prompts.messages(QUESTION, asked, {QUESTION: asked}), spec={})


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, NAMES, "options")
    return _definition(read_prompts(options, {QUESTION: (QUESTION,)}))


def _definition(prompts: Prompts) -> EnvDefinition:
    texts = RowFormat(
        name="prompt", matches=HasFields(TEXTS, any), load=partial(load, prompts=prompts), questions=TEXTS
    )
    return EnvDefinition(
        id="rows",
        entry_point="temper.envs.questions.rows:RowsEnv",
        formats=(texts,),
        configure=configure,
        max_turns=1,
    )


ENVIRONMENT = _definition(USUAL)
