"""The commands that take a run's configuration."""

import argparse
import asyncio
import sys

from temper.orchestrator.cli.dry_run import show_dry_run
from temper.orchestrator.cli.screen_options import require_dry_run, set_log_level
from temper.orchestrator.cli.submit import submit
from temper.orchestrator.pipeline.config import given_text, settled_config, unsettled_config
from temper.orchestrator.pipeline.fork import fork
from temper.orchestrator.pipeline.preview import preview_of, preview_of_fork
from temper.orchestrator.pipeline.runner import run_pipeline
from temper.orchestrator.tools.preflight.doctor.checks import start_notes


def execute(given: argparse.Namespace) -> int:
    """Run one command; returns its exit status. Raise `ValueError` or `FileNotFoundError` for a mistake in the input."""
    require_dry_run(given)
    set_log_level(given.log_level)
    if given.command == "fork" and given.dry_run:
        return show_dry_run(*preview_of_fork(given.source, given.at, given.overrides), given)
    if given.command == "fork":
        config = fork(given.source, given.at, given.overrides)
        print(f"{config.runs_dir}/{config.name}: begins at {given.at} of {given.source}", file=sys.stderr)
        return asyncio.run(run_pipeline(config, quiet=given.quiet, notes=start_notes(config)))
    if given.command == "submit":
        unsettled_config(given.config, given.overrides)  # says what is wrong with it; the job asks its cluster
        return submit(given.config, given.overrides, given.address)
    only = given.stage
    if given.dry_run:
        return show_dry_run(*preview_of(given_text(given.config, given.overrides), only=only), given)
    config = settled_config(given.config, given.overrides)
    return asyncio.run(run_pipeline(config, only=only, quiet=given.quiet, notes=start_notes(config)))
