"""The tool-use environment: look-ups and a calculator over several turns, or single-turn function calls."""

from functools import partial
from pathlib import Path

from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.row_format import RowFormat, has_fields
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import DEFAULT_TURNS, Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv, answer_each
from temper.envs.tool_use import function_rows, leaderboard_rows, lookups
from temper.envs.tool_use.reference import negatives, reference
from temper.envs.tools.text_tool import answer_call
from temper.rewards.answers import equal_numbers, final_answer
from temper.rewards.score import TOOL_ERRORS, Score, binary_score, error_rate

MAX_RESULT_CHARACTERS = 256


class ToolEnv(TaskEnv):
    """Generated tasks: a turn with tool calls is answered by one tool message per call, a turn without calls is the answer.

    The final answer follows the rules of `temper.rewards.answers`. After `max_turns` turns the episode is truncated as
    wrong. Rows of function-calling data end after their first turn, because only its calls count, by the rules of
    `temper.rewards.tool_calls`.
    """

    def begin(self, task: Task) -> None:
        self.calls = self.errors = 0

    def with_tool_errors(self, score: Score) -> Score:
        return score.with_parts({TOOL_ERRORS: error_rate(self.errors, self.calls)})

    def score_so_far(self, task: Task) -> Score:
        return self.with_tool_errors(binary_score(False))

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        if "answer" not in task.spec:
            return self.end(leaderboard_rows.judge(task, parsed.calls))
        if not parsed.calls:
            found = final_answer(parsed.answer)
            correct = found is not None and equal_numbers(found, task.spec["answer"]) is True
            score = binary_score(correct, well_formed=found is not None, detail=f"answered {(found or '')[:80]}")
            return self.end(self.with_tool_errors(score))
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns without an answer")
        tools = lookups.tools(task.spec["database"])
        results = answer_each(parsed.calls, lambda call: answer_call(call, tools))
        self.calls += len(results)
        self.errors += sum(result.startswith("error:") for result in results)
        messages: list[Message] = [{"role": "tool", "content": result[:MAX_RESULT_CHARACTERS]} for result in results]
        return self.continue_with(messages)


def in_folder(folder: Path | None) -> EnvDefinition:
    """Return the environment whose questions have their answers below this folder, if the rows have none."""
    leaderboard = RowFormat(
        name="bfcl_v4", matches=leaderboard_rows.is_question, load=partial(leaderboard_rows.load, folder=folder)
    )
    answered = RowFormat(name="bfcl", matches=has_fields("question", "function"), load=function_rows.load, questions=())
    return EnvDefinition(
        id="tool_use",
        entry_point="temper.envs.tool_use.env:ToolEnv",
        generate=lookups.generate,
        levels=2,
        formats=(leaderboard, answered),
        demonstrate=lookups.demonstrate,
        reference=reference,
        negatives=negatives,
        in_folder=in_folder,
        companions=leaderboard_rows.ANSWERS,
        parts=(*PARTS, TOOL_ERRORS),
        max_turns=DEFAULT_TURNS,
    )


ENVIRONMENT = in_folder(None)
