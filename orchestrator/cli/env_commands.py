"""The commands `env ...`, which need no run and no model: check, write and list environments, and grade answers by them."""

import argparse
import json
import os
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from temper.envs.config import EnvConfig
from temper.envs.core.bounds import require_known, require_positive
from temper.envs.presets.catalog import PRESETS, preset_of
from temper.envs.presets.preset import Preset
from temper.orchestrator.cli.arguments import DATA_OPTION, add_command, add_config_or_run
from temper.orchestrator.config.schema import data_option
from temper.orchestrator.pipeline.config import load_unresolved_config
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines

if TYPE_CHECKING:
    from temper.envs.binding import BoundEnv
    from temper.envs.core.definition import EnvDefinition
    from temper.orchestrator.cli.arguments import Commands

WIDTH = 120
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
    command = add_command(commands, "grade", _grade, text, epilog=lambda: GRADE_EPILOG + env_lines())
    _add_task_options(command, required=True)
    command.add_argument("--responses", type=Path, required=True, metavar="FILE", help="JSONL, see below")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL, one row per response")
    command.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), metavar="N", help="processes")

    text = "test an environment or a reward on reference solutions and hacks. The exit status is 1 if it fails"
    command = add_command(commands, "check", _check, text, epilog=lambda: ENVCHECK_EPILOG + env_lines())
    add_config_or_run(command, without=" (default: the environment of the options)")
    _add_task_options(command, required=False)
    command.add_argument("--reward", metavar="FUNCTION", help="your reward, as envs.NAME.reward in a configuration")
    which = "field of the rows with a right answer for --reward (default: reference, if a row has it)"
    command.add_argument("--answer", metavar="FIELD", help=which)
    command.add_argument("--limit", type=int, default=64, metavar="N", help="most tasks that are checked (default: 64)")
    command.add_argument("--seed", type=int, default=0, help="seed of the generated tasks (default: 0)")

    text = "create an environment in the current folder, with test and configuration"
    command = add_command(commands, "new", _new, text, epilog=NEW_EPILOG)
    command.add_argument("name", metavar="NAME", help="name: letters, digits and _")
    forms = command.add_mutually_exclusive_group()
    for form, does in FORMS.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=does)
    command.set_defaults(form="answer")

    text = "list the standard sets for evaluation, or describe some of them"
    command = add_command(commands, "presets", _presets, text, epilog=PRESETS_EPILOG)
    command.add_argument("names", nargs="*", metavar="NAME", help="presets to describe (default: list all)")

    text = "grade recorded answers of a run again"
    command = add_command(commands, "regrade", _regrade, text, epilog=REGRADE_EPILOG)
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


def _options(text: str | None) -> dict[str, Any]:
    try:
        options = {} if text is None else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--options {text!r} is not YAML: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"--options {text!r} must be a mapping, for example '{{dataset: mini_sudoku}}'")
    return options


def _grade(given: argparse.Namespace) -> int:
    from temper.envs.all_tasks import read_tasks
    from temper.envs.catalog import configure_env
    from temper.orchestrator.tools.debug.grading.grade import grade

    env = configure_env(given.env, _options(given.options))
    tasks = read_tasks(data_option(given.data), env, row_format=given.format)
    return 0 if grade(tasks, given.responses, given.out, workers=given.workers) else 1


def _check(given: argparse.Namespace) -> int:
    require_positive("--limit", given.limit)
    from temper.envs.reward_audit import find_own_reference, make_own_negatives, sample_tasks
    from temper.orchestrator.tools.debug.grading.envcheck import self_test

    passed = True
    for env in _select_envs(given):
        tasks = sample_tasks(env, given.limit, seed=given.seed)
        definition = env.definition
        if env.config.reward is not None and (reference := find_own_reference(tasks, given.answer)) is not None:
            negatives = partial(make_own_negatives, reference=reference)
            definition = replace(definition, reference=reference, negatives=negatives)
        report = self_test(definition, tasks)
        Console().print(report.table(f"environment {env.name}, {len(tasks)} tasks"))
        for finding in report.failed:
            print(f"{env.name} fails the check `{finding.name}`: {finding.against[0]}")
        passed = passed and report.passed
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def _select_envs(given: argparse.Namespace) -> "list[BoundEnv]":
    """Return the environment of the options, or the environments of a run's file."""
    from temper.envs.binding import ROWS, bind

    alone = {"--data": given.data, "--format": given.format, "--options": given.options, "--reward": given.reward}
    if given.config is not None:
        if surplus := [name for name, value in alone.items() if value is not None]:
            raise ValueError(f"{surplus[0]} is for a check without FILE; set it below envs in FILE, or as key=value")
        return _read_envs(given.config, given.overrides, given.env)
    if given.env is None and given.reward is None:
        raise ValueError("give a run's FILE, --env ENV, or --reward FUNCTION with --data FILE")
    data = None if given.data is None else data_option(given.data)
    config = EnvConfig(options=_options(given.options), data=data, format=given.format, reward=given.reward)
    return [bind(given.env or ROWS, config)]


def _read_envs(path: Path, overrides: list[str], name: str | None) -> "list[BoundEnv]":
    """Return the environment of this name, or all that have reference answers or a user's function. Print the others."""
    found = load_unresolved_config(path, overrides).environments
    if name is not None:
        require_known([name], tuple(found), "--env")
        return [found[name]]
    checked = [env for env in found.values() if env.config.reward is not None or env.definition.reference is not None]
    for env in found.values():
        if env not in checked:
            print(f"{env.name} is not checked: it has neither reference answers nor a reward function")
    if not checked:
        raise ValueError(f"{path} has no environment that can be checked")
    return checked


def _new(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.new_env.writing import write_env

    written = write_env(given.name, given.form, Path.cwd())
    print(f"written: {', '.join(str(file.relative_to(Path.cwd())) for file in written.files)}")
    print(f"the environment works; change {given.name}/env.py from top to bottom, then run")
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
    return [*lines, "", "`temper env presets NAME` shows the prompt, rule and source of one."]


def _description(preset: Preset) -> list[str]:
    rows = {
        "rows": f"{preset.rows}: {_data(preset)}",
        "environment": preset.env,
        "rule": preset.rule,
        "usually": preset.samples,
        "limit": f"{preset.tokens} tokens an answer, reasoning included (--max-tokens overrides it)",
        "source": preset.source,
        "prompt": preset.prompt,
        "differs": preset.differs,
    }
    lines = [line for name, text in rows.items() if text for line in _laid_out(name, text)]
    return [f"{preset.name}: {preset.title}", *lines, *_prompts(preset), ""]


def _data(preset: Preset) -> str:
    data = preset.data
    at = f" at {data.revision}" if data.revision else ""
    return f"{data.name}{at}" + (f", where {data.filter}" if data.filter else "")


def _laid_out(name: str, text: str) -> list[str]:
    margin = " " * 14
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=margin)


def _prompts(preset: Preset) -> list[str]:
    """Return the prompt formats of rows by name. `{question}` is a row's question."""
    given = preset.options.get("prompt", {})
    texts = {"prompt": given} if isinstance(given, str) else {f"prompt, {kind}": text for kind, text in given.items()}
    if "system" in preset.options:
        texts = {"system": str(preset.options["system"])} | texts
    quoted = {name: [f"    | {line}".rstrip() for line in text.split("\n")] for name, text in texts.items()}
    return [line for name, lines in quoted.items() for line in (f"  {name}:", *lines)]


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
