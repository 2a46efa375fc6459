"""The command `env new`: writes an environment of the user's own to begin with."""

import argparse
from pathlib import Path

from temper.orchestrator.tools.new_env.writing import FORMS, Form, write_env

TEXT = (
    "write an environment of your own to begin with: a package in the current folder, with its test and configuration"
)
EPILOG = """examples:
  temper env new spelling                 tasks that it makes, each with one answer
  temper env new capitals --rows          tasks out of rows of data, here of a JSONL file
  temper env new office --tools           tools that the model calls before it answers
  temper env new riddle --turns           several turns, each of which it answers

What is written works, and passes its own tests: `temper env check --env NAME` plays its gold answers and its wrong ones. Then
change NAME/env.py from top to bottom, as its first lines say. A line `NAME: {kind: NAME}` under `envs` brings it into any
configuration; docs/environments.md says what else there is.
"""
HELP_OF: dict[Form, str] = {
    "rows": "over rows of data",
    "tools": "with tools that the model calls",
    "turns": "of several turns",
}


def add_new_env_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("new", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("name", metavar="NAME", help="what it is called: letters, digits and _")
    forms = command.add_mutually_exclusive_group()
    for form, text in HELP_OF.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=text)
    command.set_defaults(execute=_execute, form=FORMS[0])


def _execute(given: argparse.Namespace) -> int:
    written = write_env(given.name, given.form, Path.cwd())
    print(f"written: {', '.join(str(file.relative_to(Path.cwd())) for file in written.files)}")
    print(f"it works as it is; change {given.name}/env.py from top to bottom, as its first lines say, and try it by")
    for command, does in written.steps:
        print(f"  {command}\n      {does}")
    return 0
