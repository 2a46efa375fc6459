"""Questions with short answers: tasks out of rows of data, here those of rows.jsonl.

Make it yours from top to bottom, and after each change run
`temper envcheck --env temper.orchestrator.tools.new_env.rows --data orchestrator/tools/new_env/rows/rows.jsonl`:

    rows.jsonl    holds a row a line; run.yaml names it, or a Parquet or CSV file, or a data set on the hub
    load          makes a task of a row: what the model is asked, and in `spec` what its answer is judged by; ValueError for
                  a row that is broken
    gold          gives an answer that must be worth 1
    corruptions   names wrong answers that must not be: those that a careless judge would accept
    Question.turn judges an answer; `parsed.answer` is the turn without its thought
"""

from collections.abc import Iterator

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.row_format import Row, RowFormat, field, has_fields
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.verdict import verdict


def load(row: Row) -> Task:
    question, answer = field(row, "question", str), field(row, "answer", str)
    if not answer.strip():
        raise ValueError("field 'answer' is empty")
    message = {"role": "user", "content": f"{question}\nAnswer in one word."}
    return Task(messages=(message,), spec={"answer": answer})  # of plain JSON data


def gold(task: Task) -> list[str]:
    return [task.spec["answer"]]  # one text for each turn of the model


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield "the answer among others", [f"Rome or {task.spec['answer']}"]
    yield "its beginning", [task.spec["answer"][:-1]]
    yield "empty", [""]


class Question(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        said = parsed.answer.strip().rstrip(".").casefold()
        return self.end(verdict(said == task.spec["answer"].casefold(), detail=f"answered {parsed.answer[:40]!r}"))


ENVIRONMENT = EnvDefinition(
    id="my_env",
    entry_point="temper.orchestrator.tools.new_env.rows.env:Question",
    formats=(RowFormat(name="my_env", matches=has_fields("question", "answer"), load=load),),
    gold=gold,
    corruptions=corruptions,
)
