"""Evaluations as the command line asks for them: through the pipeline of a run, or of a model behind a server."""

import argparse
import asyncio
import json
import os
from pathlib import Path

from temper.orchestrator.cli.arguments import RUNS, model_source, run_folder
from temper.orchestrator.cli.eval_command import KEY_VARIABLE, environments, presets, settings_of_options
from temper.orchestrator.cli.run_commands import show_dry_run
from temper.orchestrator.config.text import RawConfig, is_file, merged, overridden, read_text
from temper.orchestrator.evaluation.remote import evaluate_server
from temper.orchestrator.evaluation.scores import result_lines
from temper.orchestrator.pipeline.config import Config, make_config
from temper.orchestrator.pipeline.eval_config import (
    PATIENT,
    EvalRequest,
    fresh_name,
    label_of,
    of_model,
    of_run,
    preset_answer_limit,
    slug,
    with_evaluation,
)
from temper.orchestrator.pipeline.preview import preview_of
from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
from temper.orchestrator.pipeline.runner import run_pipeline
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.doctor.checks import start_notes
from temper.rollout.remote.client import ChatServer


def run_eval(given: argparse.Namespace) -> int:
    """Evaluate, show the results, and return the exit status. Raise `ValueError` or `FileNotFoundError` for wrong input."""
    asked = _asked(given)
    file = Path(given.what) if given.what is not None and is_file(given.what) else None
    if given.url is not None:
        if given.what is not None and file is None:
            raise ValueError(f"{given.what} with --url must be a YAML file; name the model with --model")
        return _of_server(given, PATIENT if file is None else read_text(file, []), asked)
    if file is None:
        return _through_pipeline(_of_model_or_run(given, asked), given)
    if asked.envs or asked.presets:
        raise ValueError(
            f"--{'env' if asked.envs else 'preset'} with {file}: a run is evaluated in its own environments; name the run "
            f"itself for others, or its model"
        )
    named = {} if given.name is None else {"name": given.name}
    found = merged(read_text(file, []), asked.overrides) | named
    return _through_pipeline(overridden(found, given.overrides), given, only="eval")


def config_of(given: argparse.Namespace) -> Config:
    """Return the configuration of an evaluation of a model or a run."""
    return make_config(resolve_profile(_of_model_or_run(given, _asked(given))))


def _asked(given: argparse.Namespace) -> EvalRequest:
    return EvalRequest(overrides=settings_of_options(given), envs=environments(given), presets=presets(given))


def _of_model_or_run(given: argparse.Namespace, asked: EvalRequest) -> RawConfig:
    runs_dir = given.runs_dir or RUNS
    if (folder := run_folder(given.what, runs_dir)) is not None:
        base, label = of_run(folder, RunDir(folder).newest_model().resolve()), label_of(folder)
    else:
        kinds = f"no YAML file, no model directory (it has no config.json), no run in {runs_dir}"
        source = model_source(given.what, kinds=kinds)
        base, label = of_model(source), slug(given.what if source.on_hub else source.folder.name)
        longest, own = base["rollout"]["limits"]["turn_tokens"], overridden({}, given.overrides)
        base = merged(base, preset_answer_limit(asked, given=own, longest=longest))
    if overridden({}, given.overrides).get("model", {}).get("ema"):
        label += "-ema"
    found = with_evaluation(base, asked, label=label)
    found |= {"name": given.name or fresh_name(label), "runs_dir": runs_dir}
    return overridden(found, given.overrides)


def _through_pipeline(wanted: RawConfig, given: argparse.Namespace, *, only: str | None = None) -> int:
    """Run the stages of a configuration and print the newest result, or print the plan."""
    if given.dry_run:
        return show_dry_run(*preview_of(wanted, only=only), given)
    config = make_config(resolve_profile(wanted))
    notes = start_notes(config)
    status = asyncio.run(run_pipeline(config, only=only, quiet=given.quiet or given.json, notes=notes))
    results = RunDir(Path(config.runs_dir) / config.name).evals.glob("*.json")
    if status == 0 and (newest := max(results, key=lambda path: path.stat().st_mtime, default=None)):
        show(newest, as_json=given.json)
    return status


def _of_server(given: argparse.Namespace, base: RawConfig, asked: EvalRequest) -> int:
    """Evaluate a model behind a server with the environments and settings of the configuration `base`."""
    label = slug(given.model or given.url.split("://")[-1].split("/")[0])
    limit = preset_answer_limit(asked, given=overridden(base, given.overrides))
    places = {} if given.runs_dir is None else {"runs_dir": given.runs_dir}
    found = (
        with_evaluation(merged(base, limit), asked, label=label) | {"name": given.name or fresh_name(label)} | places
    )
    options = {"concurrency": given.concurrency, "timeout_s": given.timeout, "retries": given.request_retries}
    server = ChatServer(
        url=given.url,
        key=os.environ.get(given.key_variable or KEY_VARIABLE, ""),
        **{name: value for name, value in options.items() if value is not None},
    )
    config = make_config(overridden(found, given.overrides))
    settings = config.settings(config.instances[-1])
    answers = evaluate_server(config, settings, server, model=given.model, label=label, quiet=given.quiet or given.json)
    show(asyncio.run(answers), as_json=given.json)
    return 0


def show(path: Path, *, as_json: bool = False) -> None:
    text = path.read_text(encoding="utf-8")
    print(*([text] if as_json else [*result_lines(json.loads(text)), str(path)]), sep="\n")
