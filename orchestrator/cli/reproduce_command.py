"""The command `reproduce`: a recipe's run against its band."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from temper.orchestrator.cli.arguments import add_command, add_config, path_of_run, require_run
from temper.orchestrator.cli.quick_check import check_quickly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temper.orchestrator.cli.arguments import Commands
    from temper.orchestrator.tools.inspect.bands import Band, Verdict

WIDTH = 120
OUTSIDE = 1
"""Exit status of a run with an accuracy or a reward curve outside of its band."""
TEXT = "run a recipe and compare it with its band"
EPILOG = """examples:
  temper reproduce configs/demo.yaml                             run it, then compare
  temper reproduce configs/demo.yaml seed=2                      with another seed
  temper reproduce configs/demo.yaml --run runs/demo             compare a finished run
  temper reproduce configs/demo.yaml --record runs/demo-1 runs/demo-2 runs/demo-3

RECIPE.band.json has the measures of runs of several seeds: accuracies of all evaluations, reward curves, hours. The band of a
measure is mean +- 3 s sqrt(1 + 1 / n) over n runs. s is the standard deviation between seeds, and at least the noise of an
evaluation. A reward curve is inside if 4 of 5 bins are. Hours are judged on the same hardware only.
The run is NAME-reproduce-SEED. Exit status: 0 inside or only slower, 1 outside, 2 wrong input.
"""


def add_reproduce_command(commands: "Commands") -> None:
    """Add the command to the parser."""
    command = add_command(commands, "reproduce", _execute, TEXT, epilog=EPILOG)
    add_config(command, over="YAML files and settings of the run, later ones win")
    source = command.add_mutually_exclusive_group()
    source.add_argument("--run", type=path_of_run, metavar="RUN", help="compare a finished run, run nothing")
    source.add_argument(
        "--record", type=path_of_run, nargs="+", metavar="RUN", help="write the band of finished runs, one a seed"
    )


def _execute(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.inspect.bands import read_band, record_band

    if (given.run or given.record) and given.overrides:
        raise ValueError(f"{given.overrides[0]} has no effect on a finished run; remove it")
    if given.record:
        for folder in given.record:
            require_run(folder)
        print(f"{record_band(given.config, given.record)}: {len(given.record)} runs")
        return 0
    band = read_band(given.config)  # before hours of a run
    if given.run:
        return _compare(given.config, require_run(given.run).root, band)
    return _run_and_compare(given, band)


def _run_and_compare(given: argparse.Namespace, band: "Band") -> int:
    settings = check_quickly(given.config, given.overrides)
    from temper.orchestrator.pipeline.config import make_config
    from temper.orchestrator.pipeline.gguf_model import with_converted_model
    from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
    from temper.orchestrator.pipeline.runner import run_pipeline
    from temper.orchestrator.tools.inspect.bands import unfinished_stages
    from temper.orchestrator.tools.preflight.doctor.checks import start_notes

    if not any(text.startswith("name=") for text in given.overrides):
        settings["name"] = f"{settings.get('name', given.config.stem)}-reproduce-{settings.get('seed', 1)}"
    config = make_config(resolve_profile(with_converted_model(settings)))
    folder = Path(config.runs_dir) / config.name
    if (folder / "manifest.json").is_file() and not unfinished_stages(folder):
        raise ValueError(f"{folder} has finished already; compare it with --run {folder}, or set another name=")
    status = asyncio.run(run_pipeline(config, notes=start_notes(config)))
    return status or _compare(given.config, folder, band)


def _compare(recipe: Path, folder: Path, band: "Band") -> int:
    """Print the comparison of a finished run. Return the exit status."""
    from temper.orchestrator.tools.inspect.bands import HOURS, compare, hardware_of, measure_run, other_settings

    hardware, run = hardware_of(folder), measure_run(folder)
    verdicts = compare(run, band, same_hardware=hardware == band.hardware)
    seeds = ", ".join(str(each.seed) for each in band.runs)
    print(
        f"{folder}: seed {run.seed}, {hardware}\nband of {recipe}: seeds {seeds}, {band.hardware}, commit {band.commit}"
    )
    if apart := other_settings(recipe, folder):
        print(f"other settings than the recipe: {'; '.join(apart)}")
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(verdict_table(verdicts))
    outside = [one.measure for one in verdicts if one.inside is False]
    print(f"outside: {', '.join(outside)}" if outside else "inside")
    return OUTSIDE if set(outside) - {HOURS} else 0  # other work on the machine makes a run slower, not worse


def verdict_table(verdicts: "Sequence[Verdict]") -> Table:
    """Return a comparison for a terminal."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(("measure", "measured", "band", "verdict", "off by")):
        table.add_column(name, justify="right" if number in (1, 2) else "left", no_wrap=True)
    words = {True: "inside", False: "outside", None: "-"}
    for one in verdicts:
        table.add_row(one.measure, one.measured, one.band, words[one.inside], one.off)
    return table
