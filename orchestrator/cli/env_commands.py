"""The commands `env ...`, which need no run and no model: check, write and list environments, and grade answers by them."""

import argparse
import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from temper.envs.all_tasks import generated_tasks, read_tasks
from temper.envs.catalog import ENVIRONMENTS, configured
from temper.envs.core.bounds import positive
from temper.envs.core.definition import EnvDefinition
from temper.envs.presets.catalog import PRESETS, preset_of
from temper.envs.presets.preset import Preset
from temper.orchestrator.cli.arguments import add_command
from temper.orchestrator.config.schema import DATA_OPTION, data_option
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.grade import grade
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines
from temper.orchestrator.tools.new_env.writing import FORMS, Form, write_env

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

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

It fails where a reference answer is not worth all, or a corrupted one is, and where no reference answer was tried.

"""
NEW_EPILOG = """examples:
  temper env new spelling                 tasks that it makes, each with one answer
  temper env new capitals --rows          tasks out of rows of data, here of a JSONL file
  temper env new office --tools           tools that the model calls before it answers
  temper env new riddle --turns           several turns, each of which it answers

The new environment works and passes its own tests: `temper env check --env NAME` plays its reference and wrong answers. Then
change NAME/env.py from top to bottom, as its first lines say. A line `NAME: {kind: NAME}` under `envs` brings it into any
configuration; docs/environments.md says what else there is.
"""
PRESETS_EPILOG = """examples:
  temper env presets
  temper env presets gsm8k
  temper eval models/mine --preset gsm8k --greedy

In a configuration a set is an environment, which rl evaluates between its steps but never trains on:

  envs: {math: {data: train.jsonl}, gsm8k: {preset: gsm8k}}

Rows come from the hub at the revision that is named here, or from a file of the same form: envs.NAME.eval_data, or
--preset gsm8k=FILE. Every setting of an environment can be given beside the preset, and wins.
"""
REGRADE_EPILOG = """examples:
  temper env regrade runs/demo/trajectories/rl-30.jsonl --row 17
  temper env regrade runs/demo/trajectories/eval-rl.jsonl             every row that has a reward

Makes the task again as the run made it (configuration and event log say how), plays the turns that were recorded, and prints a
JSON object for each row: what it earned then, what it earns now, parts and the verifier's line. What the run added for the
lengths in a group is left out of both. Exit status 1 where a score is another one now.
"""
HELP_OF: dict[Form, str] = {
    "rows": "over rows of data",
    "tools": "with tools that the model calls",
    "turns": "of several turns",
}
WIDTH = 120


def add_env_commands(commands: "Commands") -> None:
    """Add the commands to the group."""
    text = "score given responses to the tasks of a data file, by the code that training uses"
    command = add_command(commands, "grade", _grade, text, epilog=GRADE_EPILOG + env_lines())
    _add_task_options(command, required=True)
    command.add_argument("--responses", type=Path, required=True, metavar="FILE", help="JSONL, see below")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL, one row per response")
    command.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), metavar="N", help="processes")

    text = "let an environment test itself on reference answers and wrong ones; exit status 1 where it fails"
    command = add_command(commands, "check", _envcheck, text, epilog=ENVCHECK_EPILOG + env_lines())
    _add_task_options(command, required=False)
    command.add_argument("--limit", type=int, default=64, metavar="N", help="most tasks that are checked (default: 64)")
    command.add_argument("--seed", type=int, default=0, help="seed of the generated tasks (default: 0)")

    text = "write an environment of your own to begin with: a package in the current folder, with its test and configuration"
    command = add_command(commands, "new", _new, text, epilog=NEW_EPILOG)
    command.add_argument("name", metavar="NAME", help="what it is called: letters, digits and _")
    forms = command.add_mutually_exclusive_group()
    for form, does in HELP_OF.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=does)
    command.set_defaults(form=FORMS[0])

    text = "list the standard sets for evaluation, or describe some of them"
    command = add_command(commands, "presets", _presets, text, epilog=PRESETS_EPILOG)
    command.add_argument("names", nargs="*", metavar="NAME", help="those to describe; without any all are listed")

    text = "put recorded answers of a run to their verifiers again"
    command = add_command(commands, "regrade", _regrade, text, epilog=REGRADE_EPILOG)
    command.add_argument("file", type=Path, metavar="FILE", help="a file of a run's folder `trajectories`")
    which = "a row by its number, from 0 (default: all that have a reward)"
    command.add_argument("--row", type=int, action="append", metavar="N", help=which)


def _add_task_options(command: argparse.ArgumentParser, *, required: bool) -> None:
    without = "" if required else "; without it tasks are generated"
    command.add_argument("--env", required=True, metavar="ENV", help=f"{', '.join(ENVIRONMENTS)}, or your own module")
    command.add_argument("--data", required=required, metavar="DATA", help=f"{DATA_OPTION}{without}")
    command.add_argument("--format", metavar="NAME", help="format of the rows, see below (default: found out)")
    command.add_argument("--options", default="{}", metavar="YAML", help="as envs.NAME.options in a configuration")


def env_lines() -> str:
    """Return a table of the environments."""
    width = max(map(len, ENVIRONMENTS))
    rows = [f"  {name:<{width}}  {_rows(env)}" for name, env in ENVIRONMENTS.items()]
    head = "environments, with the formats of rows that each reads, found out where none is named:"
    return "\n".join([head, *rows, "docs/environments.md says what each compares, docs/data.md how rows are named."])


def _rows(env: EnvDefinition) -> str:
    formats = ", ".join(one.name for one in env.formats) or (
        "those of the folder of its data" if env.in_folder else "the options say which" if env.configure else "none"
    )
    return f"{formats}; generates tasks too" if env.generate is not None else formats


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


def _new(given: argparse.Namespace) -> int:
    written = write_env(given.name, given.form, Path.cwd())
    print(f"written: {', '.join(str(file.relative_to(Path.cwd())) for file in written.files)}")
    print(f"it works as it is; change {given.name}/env.py from top to bottom, as its first lines say, and try it by")
    for command, does in written.steps:
        print(f"  {command}\n      {does}")
    return 0


def _presets(given: argparse.Namespace) -> int:
    chosen = [preset_of(name) for name in given.names]
    print(*(line for preset in chosen for line in _description(preset)) if chosen else _table(), sep="\n")
    return 0


def _table() -> list[str]:
    head = ("preset", "set", "rows", "environment", "usually", "data")
    rows = [(one.name, one.title, str(one.rows), one.env, one.samples, one.data.name) for one in PRESETS.values()]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
    return [*lines, "", "`temper env presets NAME` says prompt, rule and source of one."]


def _description(preset: Preset) -> list[str]:
    said = {
        "rows": f"{preset.rows}: {_data(preset)}",
        "environment": preset.env,
        "rule": preset.rule,
        "usually": preset.samples,
        "limit": f"{preset.tokens} tokens an answer, thought included, unless --max-tokens says otherwise",
        "source": preset.source,
        "prompt": preset.prompt,
        "differs": preset.differs,
    }
    lines = [line for name, text in said.items() if text for line in _laid_out(name, text)]
    return [f"{preset.name}: {preset.title}", *lines, *_prompts(preset), ""]


def _data(preset: Preset) -> str:
    data = preset.data
    at = f" at {data.revision}" if data.revision else ""
    return f"{data.name}{at}" + (f", where {data.filter}" if data.filter else "")


def _laid_out(name: str, text: str) -> list[str]:
    margin = " " * 14
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=margin)


def _prompts(preset: Preset) -> list[str]:
    """Return the texts in which rows are put to the model, each behind its name; `{question}` is a row's."""
    given = preset.options.get("prompt", {})
    texts = {"prompt": given} if isinstance(given, str) else {f"prompt, {kind}": text for kind, text in given.items()}
    if "system" in preset.options:
        texts = {"system": str(preset.options["system"])} | texts
    return [line for name, text in texts.items() for line in (f"  {name}:", *_quoted(text))]


def _quoted(text: str) -> list[str]:
    return [f"    | {line}".rstrip() for line in text.split("\n")]


def _regrade(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.debug.grading.recorded import regrade

    rows = list(Lines(given.file).rows())
    scored = [number for number, row in enumerate(rows) if row["reward"] is not None]
    wanted = scored if given.row is None else given.row
    bad = [number for number in wanted if not 0 <= number < len(rows)]
    if bad:
        raise ValueError(f"--row {bad[0]}: {given.file} has rows 0 to {len(rows) - 1}")
    agree = True
    for one in regrade(given.file, rows, wanted):
        print(json.dumps(one.as_json()), flush=True)
        agree = agree and one.agrees
    return 0 if agree else 1
