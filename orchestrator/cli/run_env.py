"""The work of the commands `env ...`."""

import argparse
import json
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from temper.envs.all_tasks import read_tasks
from temper.envs.binding import ROWS, BoundEnv, bind
from temper.envs.catalog import configure_env
from temper.envs.config import EnvConfig
from temper.envs.core.bounds import only_known, positive
from temper.envs.presets.catalog import PRESETS, preset_of
from temper.envs.presets.preset import Preset
from temper.envs.reward_audit import own_negatives, own_reference, sample_tasks
from temper.orchestrator.config.schema import data_option
from temper.orchestrator.pipeline.config import load_unresolved_config
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.grade import grade
from temper.orchestrator.tools.debug.grading.recorded import regrade
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines
from temper.orchestrator.tools.new_env.writing import write_env

WIDTH = 120


def _options(text: str | None) -> dict[str, Any]:
    try:
        options = {} if text is None else yaml.safe_load(text)
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
    positive("--limit", given.limit)
    passed = True
    for env in _select_envs(given):
        tasks = sample_tasks(env, given.limit, seed=given.seed)
        definition = env.definition
        if env.config.reward is not None and (reference := own_reference(tasks, given.answer)) is not None:
            negatives = partial(own_negatives, reference=reference)
            definition = replace(definition, reference=reference, negatives=negatives)
        report = self_test(definition, tasks)
        Console().print(report.table(f"environment {env.name}, {len(tasks)} tasks"))
        for finding in report.failed:
            print(f"{env.name} fails the check `{finding.name}`: {finding.against[0]}")
        passed = passed and report.passed
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def _select_envs(given: argparse.Namespace) -> list[BoundEnv]:
    """Return the environment of the options, or the environments of a run's file."""
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


def _read_envs(path: Path, overrides: list[str], name: str | None) -> list[BoundEnv]:
    """Return the environment of this name, or all that have reference answers or a user's function. Print the others."""
    found = load_unresolved_config(path, overrides).environments
    if name is not None:
        only_known([name], tuple(found), "--env")
        return [found[name]]
    checked = [env for env in found.values() if env.config.reward is not None or env.definition.reference is not None]
    for env in found.values():
        if env not in checked:
            print(f"{env.name} is not checked: it has neither reference answers nor a reward function")
    if not checked:
        raise ValueError(f"{path} has no environment that can be checked")
    return checked


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
