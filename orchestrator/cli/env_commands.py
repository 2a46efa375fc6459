"""The commands `env ...`, which need no run and no model: check, write and list environments, and grade answers by them."""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from temper.orchestrator.cli.arguments import DATA_OPTION, add_command, add_config_or_run

if TYPE_CHECKING:
    from temper.envs.core.definition import EnvDefinition
    from temper.orchestrator.cli.arguments import Commands

GRADE_EPILOG = """examples:
  temper env grade --env math --data gsm8k_test.jsonl --responses answers.jsonl --out graded.jsonl
  temper env grade --env code --data humaneval.jsonl --responses answers.jsonl --out graded.jsonl --workers 2

a response is one of
  {"key": 0, "response": "So she has 72 clips.\\n#### 72"}
  {"key": "simple_python_0", "calls": [{"name": "area", "arguments": {"base": 10}}]}
  {"key": 3, "messages": [{"role": "assistant", "content": "", "tool_calls": [...]}, {"role": "tool", ...}]}
`key` is the task's id (task_id, id), or else its 0-based row number. A result has key, reward, parts, failure (null, or type
and message if there is no reward) and seconds. The exit status is 1 if a response has no reward.

"""
ENVCHECK_EPILOG = """examples:
  temper env check --env math --limit 200
  temper env check --env code --data humaneval.jsonl
  temper env check --env reasoning_gym --options '{dataset: mini_sudoku}'
  temper env check --env math --data '{path: mine.csv, columns: {question: problem, answer: solution}}'
  temper env check --reward mine.right --data cities.jsonl --answer solution
  temper env check run.yaml                            all environments of a run, with their rewards

It fails if a reference solution does not get the full reward, if a negative does, or if there is no reference solution. It
also fails if an answer without knowledge of the task pays. A reward function needs no reference solutions, but with them
more is tried. It gets a right answer by a reward above 0.3. No judge is asked.

"""
NEW_EPILOG = """examples:
  temper env new spelling                 generated tasks, each with one answer
  temper env new capitals --rows          tasks from rows of a JSONL file
  temper env new office --tools           tools that the model calls
  temper env new riddle --turns           several turns

The new environment works: `temper env check NAME/run.yaml` runs its reference solutions and negatives. Then edit NAME/env.py
from top to bottom. To use it, add `NAME: {kind: NAME}` under `envs` in a configuration. docs/environments.md has the reference.
"""
PRESETS_EPILOG = """examples:
  temper env presets
  temper env presets gsm8k
  temper eval models/mine --preset gsm8k --greedy

In a configuration a benchmark is an environment that rl evaluates between steps and never trains on:

  envs: {math: {data: train.jsonl}, gsm8k: {preset: gsm8k}}

Rows come from the hub at a fixed revision, or from a file of the same format: envs.NAME.eval_data, or --preset gsm8k=FILE.
Settings of an environment override its preset.
"""
REGRADE_EPILOG = """examples:
  temper env regrade runs/demo/trajectories/rl-30.jsonl --row 17
  temper env regrade runs/demo/trajectories/eval-rl.jsonl             all rows with a reward

Rebuilds each task from the run's configuration and event log, replays the recorded turns, and prints a JSON object per row: the
recorded reward, the new reward, parts and the verifier's detail, without length shaping. The exit status is 1 if a score
differs.
"""
FORMS = {
    "answer": "generated tasks with one answer (default)",
    "rows": "over rows of data",
    "tools": "with tools that the model calls",
    "turns": "of several turns",
}


def add_env_commands(commands: "Commands") -> None:
    """Add the commands to the group."""
    text = "score responses to the tasks of a data file, with the code of training"
    command = add_command(
        commands, "grade", partial(_execute, "grade"), text, epilog=lambda: GRADE_EPILOG + env_lines()
    )
    _add_task_options(command, required=True)
    command.add_argument("--responses", type=Path, required=True, metavar="FILE", help="JSONL, see below")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL, one row per response")
    command.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), metavar="N", help="processes")

    text = "test an environment or a reward on reference solutions and hacks. The exit status is 1 if it fails"
    command = add_command(
        commands, "check", partial(_execute, "check"), text, epilog=lambda: ENVCHECK_EPILOG + env_lines()
    )
    add_config_or_run(command, without=" (default: the environment of the options)")
    _add_task_options(command, required=False)
    command.add_argument("--reward", metavar="FUNCTION", help="your reward, as envs.NAME.reward in a configuration")
    which = "field of the rows with a right answer for --reward (default: reference, if a row has it)"
    command.add_argument("--answer", metavar="FIELD", help=which)
    command.add_argument("--limit", type=int, default=64, metavar="N", help="most tasks that are checked (default: 64)")
    command.add_argument("--seed", type=int, default=0, help="seed of the generated tasks (default: 0)")

    text = "create an environment in the current folder, with test and configuration"
    command = add_command(commands, "new", partial(_execute, "new"), text, epilog=NEW_EPILOG)
    command.add_argument("name", metavar="NAME", help="name: letters, digits and _")
    forms = command.add_mutually_exclusive_group()
    for form, does in FORMS.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=does)
    command.set_defaults(form="answer")

    text = "list the standard sets for evaluation, or describe some of them"
    command = add_command(commands, "presets", partial(_execute, "presets"), text, epilog=PRESETS_EPILOG)
    command.add_argument("names", nargs="*", metavar="NAME", help="presets to describe (default: list all)")

    text = "grade recorded answers of a run again"
    command = add_command(commands, "regrade", partial(_execute, "regrade"), text, epilog=REGRADE_EPILOG)
    command.add_argument("file", type=Path, metavar="FILE", help="a file of a run's folder `trajectories`")
    which = "a row by its number, from 0 (default: all that have a reward)"
    command.add_argument("--row", type=int, action="append", metavar="N", help=which)


def _add_task_options(command: argparse.ArgumentParser, *, required: bool) -> None:
    without = "" if required else "; tasks are generated without it"
    names = "an environment of the list below, or your module"
    command.add_argument("--env", required=required, metavar="ENV", help=names if required else f"{names}, or of FILE")
    command.add_argument("--data", required=required, metavar="DATA", help=f"{DATA_OPTION}{without}")
    command.add_argument("--format", metavar="NAME", help="format of the rows, see below (default: detected)")
    command.add_argument("--options", metavar="YAML", help="as envs.NAME.options in a configuration")


def env_lines() -> str:
    """Return a table of the environments."""
    from temper.envs.catalog import ENVIRONMENTS

    width = max(map(len, ENVIRONMENTS))
    rows = [f"  {name:<{width}}  {_rows(env)}" for name, env in ENVIRONMENTS.items()]
    head = "environments with their row formats, which are detected by default:"
    return "\n".join([head, *rows, "docs/environments.md describes their rewards, docs/data.md the columns."])


def _rows(env: "EnvDefinition") -> str:
    formats = ", ".join(one.name for one in env.formats) or (
        "those of the folder of its data" if env.in_folder else "the options say which" if env.configure else "none"
    )
    return f"{formats}; generates tasks too" if env.generate is not None else formats


def _execute(name: str, given: argparse.Namespace) -> int:
    from temper.orchestrator.cli import run_env

    commands = {
        "grade": run_env.run_grade,
        "check": run_env.run_check,
        "new": run_env.run_new,
        "presets": run_env.run_presets,
        "regrade": run_env.run_regrade,
    }
    return commands[name](given)
