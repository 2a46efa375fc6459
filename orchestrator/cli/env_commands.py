"""The commands that need no run and no model: `env grade` and `env check`."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from temper.envs.all_tasks import generated_tasks, read_tasks
from temper.envs.catalog import ENVIRONMENTS, configured
from temper.envs.core.bounds import positive
from temper.orchestrator.cli.env_lines import env_lines
from temper.orchestrator.config.schema import DATA_OPTION, data_option
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.grade import grade

RAW = argparse.RawDescriptionHelpFormatter
GRADE_EPILOG = """examples:
  temper env grade --env math --data gsm8k_test.jsonl --responses answers.jsonl --out graded.jsonl
  temper env grade --env code --data humaneval.jsonl --responses answers.jsonl --out graded.jsonl --workers 2

a response is one of
  {"key": 0, "response": "So she has 72 clips.\\n#### 72"}
  {"key": "simple_python_0", "calls": [{"name": "area", "arguments": {"base": 10}}]}
  {"key": 3, "messages": [{"role": "assistant", "content": "", "tool_calls": [...]}, {"role": "tool", ...}]}
`key` is the task's own id (task_id, id), else its 0-based row number. A result has key, reward, parts, failure (null,
or type and message: then there is no reward) and seconds. Exit status 1 where a response has no reward.

"""
ENVCHECK_EPILOG = """examples:
  temper env check --env math --limit 200
  temper env check --env code --data humaneval.jsonl
  temper env check --env reasoning_gym --options '{dataset: mini_sudoku}'
  temper env check --env math --data '{path: mine.csv, columns: {question: problem, answer: solution}}'

It fails where a gold answer is not worth all, or a corrupted one is, and where no gold answer was tried.

"""


def add_env_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to the parser; each sets `execute`, which takes the parsed arguments and gives the status."""
    text = "score given responses to the tasks of a data file, by the code that training uses"
    command = commands.add_parser(
        "grade", help=text, description=text, epilog=GRADE_EPILOG + env_lines(), formatter_class=RAW
    )
    _add_task_options(command, required=True)
    command.add_argument("--responses", type=Path, required=True, metavar="FILE", help="JSONL, see below")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL, one row per response")
    command.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), metavar="N", help="processes")
    command.set_defaults(execute=_grade)

    text = "let an environment test itself on gold answers and corrupted ones; exit status 1 where it fails"
    epilog = ENVCHECK_EPILOG + env_lines()
    command = commands.add_parser("check", help=text, description=text, epilog=epilog, formatter_class=RAW)
    _add_task_options(command, required=False)
    command.add_argument("--limit", type=int, default=64, metavar="N", help="most tasks that are checked (default: 64)")
    command.add_argument("--seed", type=int, default=0, help="seed of the generated tasks (default: 0)")
    command.set_defaults(execute=_envcheck)


def _add_task_options(command: argparse.ArgumentParser, *, required: bool) -> None:
    without = "" if required else "; without it tasks are generated"
    command.add_argument("--env", required=True, metavar="ENV", help=f"{', '.join(ENVIRONMENTS)}, or your own module")
    command.add_argument("--data", required=required, metavar="DATA", help=f"{DATA_OPTION}{without}")
    command.add_argument("--format", metavar="NAME", help="format of the rows, see below (default: found out)")
    command.add_argument("--options", default="{}", metavar="YAML", help="as envs.NAME.options in a configuration")


def _options(text: str) -> Mapping[str, Any]:
    try:
        options = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--options {text!r} is not YAML: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"--options {text!r} must be a mapping, for example '{{dataset: mini_sudoku}}'")
    return options


def _grade(given: argparse.Namespace) -> int:
    env = configured(given.env, _options(given.options))
    tasks = read_tasks(data_option(given.data), env, row_format=given.format)
    return 0 if grade(tasks, given.responses, given.out, workers=given.workers) else 1


def _envcheck(given: argparse.Namespace) -> int:
    env = configured(given.env, _options(given.options))
    positive("--limit", given.limit)
    if given.data is None:
        tasks = generated_tasks(env, given.limit, seed=given.seed)
    else:
        rows = read_tasks(data_option(given.data), env, row_format=given.format)
        tasks = list(rows.values())[: given.limit]
    report = self_test(env, tasks)
    Console().print(report.table(f"environment {given.env}, {len(tasks)} tasks"))
    print("passed" if report.passed else "FAILED")
    return 0 if report.passed else 1
