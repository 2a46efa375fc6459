"""The command `env regrade`: recorded answers of a run, put to their verifiers again."""

import argparse
import json
from pathlib import Path

from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines

EPILOG = """examples:
  temper env regrade runs/demo/trajectories/rl-30.jsonl --row 17
  temper env regrade runs/demo/trajectories/eval-rl.jsonl             every row that has a reward

Makes the task again as the run made it (configuration and ledger say how), plays the turns that were recorded, and prints a
JSON object for each row: what it earned then, what it earns now, parts and the verifier's line. What the run added for the
lengths in a group is left out of both. Exit status 1 where a verdict is another one now.
"""


def add_regrade_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "put recorded answers of a run to their verifiers again"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("regrade", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument("file", type=Path, metavar="FILE", help="a file of a run's folder `trajectories`")
    which = "a row by its number, from 0 (default: all that have a reward)"
    command.add_argument("--row", type=int, action="append", metavar="N", help=which)
    command.set_defaults(execute=_regrade)


def _regrade(given: argparse.Namespace) -> int:
    # Imported here: what reads configurations and turns takes seconds to import.
    from temper.orchestrator.tools.debug.grading.recorded import regraded

    rows = list(Lines(given.file).rows())
    scored = [number for number, row in enumerate(rows) if row["reward"] is not None]
    wanted = scored if given.row is None else given.row
    bad = [number for number in wanted if not 0 <= number < len(rows)]
    if bad:
        raise ValueError(f"--row {bad[0]}: {given.file} has rows 0 to {len(rows) - 1}")
    agree = True
    for one in regraded(given.file, rows, wanted):
        print(json.dumps(one.as_json()), flush=True)
        agree = agree and one.agrees
    return 0 if agree else 1
