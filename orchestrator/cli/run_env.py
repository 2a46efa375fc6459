"""The work of the commands `env ...`."""

import argparse
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from temper.envs.all_tasks import generated_tasks, read_tasks
from temper.envs.catalog import configure_env
from temper.envs.core.bounds import positive
from temper.envs.presets.catalog import PRESETS, preset_of
from temper.envs.presets.preset import Preset
from temper.orchestrator.config.schema import data_option
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.grade import grade
from temper.orchestrator.tools.debug.grading.recorded import regrade
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines
from temper.orchestrator.tools.new_env.writing import write_env

WIDTH = 120


def _options(text: str) -> Mapping[str, Any]:
    try:
        options = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--options {text!r} is not YAML: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"--options {text!r} must be a mapping, for example '{{dataset: mini_sudoku}}'")
    return options


def run_grade(given: argparse.Namespace) -> int:
    env = configure_env(given.env, _options(given.options))
    tasks = read_tasks(data_option(given.data), env, row_format=given.format)
    return 0 if grade(tasks, given.responses, given.out, workers=given.workers) else 1


def run_check(given: argparse.Namespace) -> int:
    env = configure_env(given.env, _options(given.options))
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


def run_new(given: argparse.Namespace) -> int:
    written = write_env(given.name, given.form, Path.cwd())
    print(f"written: {', '.join(str(file.relative_to(Path.cwd())) for file in written.files)}")
    print(f"the environment works; change {given.name}/env.py from top to bottom, then run")
    for command, does in written.steps:
        print(f"  {command}\n      {does}")
    return 0


def run_presets(given: argparse.Namespace) -> int:
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
    return [line for name, text in texts.items() for line in (f"  {name}:", *_quoted(text))]


def _quoted(text: str) -> list[str]:
    return [f"    | {line}".rstrip() for line in text.split("\n")]


def run_regrade(given: argparse.Namespace) -> int:
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
