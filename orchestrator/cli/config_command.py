"""The command `config`: what a configuration may say, what one says, and how two differ."""

import argparse
import sys

from orchestrator.cli.named_model import path_of_run

TEXT = "explain the settings, show what a configuration comes to"
EPILOG = """examples:
  python -m orchestrator config --explain rl.loss.error_guard
  python -m orchestrator config --explain rl.loss
  python -m orchestrator config configs/demo.yaml --explain rl.groups_per_step
  python -m orchestrator config runs/demo --explain envs.*.share

A setting is explained by its key: type, default, unit, meaning, what a change means to a run that goes on, and which stages
read it; with FILE also by its value there and where that comes from. A section lists its settings. docs/settings.md has all.
"""


def add_config_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("config", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument(
        "config", nargs="?", type=path_of_run, metavar="FILE", help="a YAML file, or a run's folder or name"
    )
    command.add_argument("overrides", nargs="*", metavar="key=value", help="settings over those of FILE")
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--explain", metavar="KEY", help="explain a setting, such as rl.max_lag, or a section")
    what.add_argument("--reference", action="store_true", help="print docs/settings.md, the page of all settings")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    # Imported here: the settings stand beside what they configure, which takes 10 s to import.
    from orchestrator.reference.explained import explain
    from orchestrator.reference.settings_page import settings_page

    if given.reference:
        sys.stdout.write(settings_page())
        return 0
    print(*explain(given.explain, given.config, given.overrides), sep="\n")
    return 0
