"""The command `config`: explain settings, resolve a configuration, compare two."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from temper.orchestrator.cli.arguments import add_command, add_config_or_run, path_of_run
from temper.orchestrator.run.screen import print_text

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

TEXT = "explain settings, print a resolved configuration, compare two"
EPILOG = """examples:
  temper config --explain rl.loss.error_guard
  temper config --explain rl.loss
  temper config configs/demo.yaml --explain rl.groups_per_step
  temper config configs/demo.yaml --resolved rl.steps=50 > mine.yaml
  temper config --diff configs/demo.yaml runs/demo
  temper config --schema > settings.schema.json

--explain KEY shows type, default, unit, meaning, and whether a resumed run may change the setting. With FILE it also shows the
value and its source. A section lists its settings. docs/settings.md has all settings.
The profile is resolved as for a run, but nothing is downloaded. For yaml-language-server, begin a file with
`# yaml-language-server: $schema=settings.schema.json`.
"""


def add_config_command(commands: "Commands") -> None:
    """Add the command to the parser."""
    command = add_command(commands, "config", _execute, TEXT, epilog=EPILOG)
    add_config_or_run(command)
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--explain", metavar="KEY", help="explain a setting, such as rl.max_lag, or a section")
    what.add_argument("--resolved", action="store_true", help="print all that a run of FILE would have, as YAML")
    what.add_argument(
        "--diff",
        nargs=2,
        type=path_of_run,
        metavar=("A", "B"),
        help="show how two configurations differ",
    )
    what.add_argument("--schema", action="store_true", help="print the JSON schema for editors")
    what.add_argument("--reference", action="store_true", help="print docs/settings.md, the page of all settings")


def _execute(given: argparse.Namespace) -> int:
    from temper.orchestrator.pipeline.reference.pages import editor_schema, settings_page
    from temper.orchestrator.pipeline.reference.resolved_file import differences, explain, resolve, resolved_yaml

    path, overrides = _files(given)
    if given.schema:
        sys.stdout.write(editor_schema())
    elif given.reference:
        sys.stdout.write(settings_page())
    elif given.resolved:
        assert path is not None
        sys.stdout.write(resolved_yaml(resolve(path, overrides)))
    elif given.diff:
        files = [resolve(path, []) for path in given.diff]
        lines = [*differences(*files), *(f"{file.path}: {file.note}" for file in files if file.note)]
        print_text(Console(), "\n".join(lines))
    else:
        print_text(Console(), "\n".join(explain(given.explain, path, overrides)))
    return 0


def _files(given: argparse.Namespace) -> tuple[Path | None, list[str]]:
    """Return FILE and its overrides. Raise `ValueError` if it is missing or unexpected."""
    named = [] if given.config is None else [str(given.config)]
    words = [*named, *given.overrides]
    if words and not (given.resolved or given.explain):
        raise ValueError(f"unexpected {words[0]}: --diff takes exactly two files, --schema and --reference take none")
    if words and "=" in words[0] and not Path(words[0]).exists():
        raise ValueError(
            f"{words[0]} without FILE, for example `temper config configs/demo.yaml --explain rl.steps {words[0]}`"
        )
    if given.resolved and not words:
        raise ValueError("--resolved needs FILE, for example `temper config configs/demo.yaml --resolved`")
    return (Path(words[0]) if words else None), words[1:]
