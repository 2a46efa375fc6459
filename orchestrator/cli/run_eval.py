"""Evaluations as the command line asks for them: through the pipeline of a run, or of a model behind a server."""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temper.orchestrator.cli.dry_run import show_dry_run
from temper.orchestrator.cli.eval_command import KEY_VARIABLE
from temper.orchestrator.cli.named_model import RUNS, newest_model, run_folder
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.text import is_file, merged, overridden, read_text
from temper.orchestrator.evaluation.remote import evaluate_server
from temper.orchestrator.evaluation.table import result_lines
from temper.orchestrator.pipeline.config import Config, make_config
from temper.orchestrator.pipeline.eval_config import (
    PATIENT,
    Given,
    answer_limit,
    asked_for,
    fresh_name,
    label_of,
    of_model,
    of_run,
    slug,
)
from temper.orchestrator.pipeline.preview import preview_of
from temper.orchestrator.pipeline.profiles.settled import settled
from temper.orchestrator.pipeline.runner import run_pipeline
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.doctor.checks import start_notes
from temper.rollout.remote.server import ChatServer

Envs = Mapping[str, str | None]


def run_eval(given: argparse.Namespace, *, told: Mapping[str, Any], envs: Envs, presets: Envs) -> int:
    """Evaluate what the command line names, and show the results; returns the exit status.

    `envs` and `presets` are the environments and standard sets that are asked, with data where some is named.

    Raise `ValueError` or `FileNotFoundError` for a mistake in the input.
    """
    file = Path(given.what) if given.what is not None and is_file(given.what) else None
    if given.url is not None:
        if given.what is not None and file is None:
            raise ValueError(
                f"{given.what} beside --url must be a YAML file, whose tasks are asked; the model is --model"
            )
        return _of_server(
            given, PATIENT if file is None else read_text(file, []), told=told, envs=envs, presets=presets
        )
    if file is None:
        return _through_pipeline(_asked(given, told=told, envs=envs, presets=presets), given)
    if envs or presets:
        raise ValueError(
            f"--{'env' if envs else 'preset'} beside {file}: a run is evaluated in its own environments; name the run itself "
            f"for others, or its model"
        )
    named = {} if given.name is None else {"name": given.name}
    found = merged(read_text(file, []), told) | named
    return _through_pipeline(overridden(found, given.overrides), given, only="eval")


def config_of(given: argparse.Namespace, *, told: Mapping[str, Any], envs: Envs, presets: Envs) -> Config:
    """Return the configuration of an evaluation of a model or a run."""
    return make_config(settled(_asked(given, told=told, envs=envs, presets=presets)))


def _asked(given: argparse.Namespace, *, told: Mapping[str, Any], envs: Envs, presets: Envs) -> Given:
    runs_dir = given.runs_dir or RUNS
    folder = run_folder(given.what, runs_dir)
    if folder is not None and not (Path(given.what) / "config.json").is_file():
        base, label = of_run(folder, newest_model(folder).resolve()), label_of(folder)
    else:
        source = ModelSource(path=given.what)
        if not (source.on_hub or (source.place / "config.json").is_file()):
            raise FileNotFoundError(
                f"{given.what} is no YAML file, no model directory (it has no config.json), no run in {runs_dir} and no "
                f"name on the hub"
            )
        base, label = of_model(source), slug(given.what if source.on_hub else source.folder.name)
        longest, own = base["rollout"]["limits"]["turn_tokens"], overridden({}, given.overrides)
        base = merged(base, answer_limit(presets, envs=envs, given=own, longest=longest))
    found = asked_for(base, told, label=label, envs=envs, presets=presets)
    found |= {"name": given.name or fresh_name(label), "runs_dir": runs_dir}
    return overridden(found, given.overrides)


def _through_pipeline(wanted: Given, given: argparse.Namespace, *, only: str | None = None) -> int:
    """Run the stages of a configuration, and show the newest result as it was asked for; or show what would run."""
    if given.dry_run:
        return show_dry_run(*preview_of(wanted, only=only), given)
    config = make_config(settled(wanted))
    notes = start_notes(config)
    status = asyncio.run(run_pipeline(config, only=only, quiet=given.quiet or given.json, notes=notes))
    results = RunDir(Path(config.runs_dir) / config.name).evals.glob("*.json")
    if status == 0 and (newest := max(results, key=lambda path: path.stat().st_mtime, default=None)):
        show(newest, as_json=given.json)
    return status


def _of_server(given: argparse.Namespace, base: Given, *, told: Mapping[str, Any], envs: Envs, presets: Envs) -> int:
    """Evaluate a model behind a server; `base` is a configuration whose environments and settings it is asked with."""
    label = slug(given.model or given.url.split("://")[-1].split("/")[0])
    limit = answer_limit(presets, envs=envs, given=overridden(base, given.overrides))
    found = asked_for(merged(base, limit), told, label=label, envs=envs, presets=presets)
    found |= {"name": given.name or fresh_name(label)} | (
        {} if given.runs_dir is None else {"runs_dir": given.runs_dir}
    )
    options = {"concurrency": given.concurrency, "timeout_s": given.timeout, "retries": given.request_retries}
    server = ChatServer(
        url=given.url,
        key=os.environ.get(given.key_variable or KEY_VARIABLE, ""),
        **{name: value for name, value in options.items() if value is not None},
    )
    config = make_config(overridden(found, given.overrides))
    settings = config.settings(config.instances[-1])
    asked = evaluate_server(config, settings, server, model=given.model, label=label, quiet=given.quiet or given.json)
    show(asyncio.run(asked), as_json=given.json)
    return 0


def show(path: Path, *, as_json: bool = False) -> None:
    """Print a result as a short table and where it lies, or its file as it is."""
    text = path.read_text(encoding="utf-8")
    print(*([text] if as_json else [*result_lines(json.loads(text)), str(path)]), sep="\n")
