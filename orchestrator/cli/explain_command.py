"""The command `debug explain`: where metrics of a run bend, and from which groups the update came there."""

import argparse
import json

from rich.console import Console

from temper.orchestrator.cli.named_model import path_of_run, require_run
from temper.orchestrator.tools.inspect.viewer.loopback import LOOPBACK

PORT = 8310
EPILOG = f"""examples:
  temper debug explain runs/demo
  temper debug explain runs/demo --stage rl-2 --json | jq '.bends[0]'
  temper view runs/demo --port {PORT}          serves the pages that the links lead to

Reads the run's folder only; the run may be at work. A metric bends if one straight line does not fit it and two do, so a steady
rise does not bend.
docs/explaining.md says how to read it.
"""


def add_explain_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "find where the metrics of a run bend, and from which groups the update came there"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("explain", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    command.add_argument(
        "--stage", metavar="NAME", help="the stage that is explained (default: the newest that samples and trains)"
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"port of `temper view` in the links (default: {PORT})"
    )
    command.set_defaults(execute=_explain)


def _explain(given: argparse.Namespace) -> int:
    # Imported here: recorded batches take seconds to import.
    from temper.orchestrator.tools.inspect.explain.explanation import explain, print_explanation

    found = explain(require_run(given.run), stage=given.stage)
    if given.json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print_explanation(found, Console(highlight=False), viewer=f"http://{LOOPBACK}:{given.port}/")
    return 0
