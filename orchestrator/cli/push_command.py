"""The command `push`: upload a run's newest model to the Hugging Face hub."""

import argparse
from typing import TYPE_CHECKING

from temper.orchestrator.cli.arguments import add_command, add_run, require_run

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

EPILOG = """examples:
  temper push runs/demo me/demo-math --dry-run    write the card and list the files
  temper push runs/demo me/demo-math              upload to a private repository
  temper push runs/demo me/demo-math --public

The model card, RUN/README.md, has the results, the settings and the command of the run. The token is HF_TOKEN or the one of
`hf auth login`.
"""


def add_push_command(commands: "Commands") -> None:
    command = add_command(commands, "push", _push, "upload a run's model with a model card to the hub", epilog=EPILOG)
    add_run(command)
    command.add_argument("name", metavar="USER/NAME", help="the repository; it is created if it does not exist")
    command.add_argument("--public", action="store_true", help="create a public repository (default: private)")
    command.add_argument("--dry-run", action="store_true", help="write the card and list the files, upload nothing")


def _push(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.inspect.push import collect_files, upload

    run = require_run(given.run)
    if given.name.count("/") != 1:
        raise ValueError(f"{given.name} is not of the form USER/NAME")
    files = collect_files(run, given.name)
    for name, path in files.items():
        print(f"{path.stat().st_size / 1e6:10.1f} MB  {name}")
    if given.dry_run:
        print(f"dry run: nothing is uploaded; the card is {run.root / 'README.md'}")
        return 0
    print(upload(files, given.name, public=given.public, run=given.run))
    return 0
