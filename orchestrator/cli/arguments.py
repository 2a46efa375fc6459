"""Shared arguments of commands, and the models and runs that they name.

A command sets `execute`, which receives the parsed arguments and returns the exit status. It imports slow modules.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

from temper.envs.core.bounds import suggest_name
from temper.orchestrator.run.driver import OURS, VLLM_LEVEL
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.screen import fit_text

if TYPE_CHECKING:
    from temper.orchestrator.config.model_source import ModelSource

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

RUNS = "runs"
"""The default folder of runs."""
LEFT = ("config.yaml", "manifest.json", "metrics.jsonl", "status.json", "trajectories", "eval")
"""Files that mark the folder of a run or an evaluation."""
DATA_OPTION = (
    """rows: a file, a folder, a name on the hub, or YAML as in '{path: openai/gsm8k, config: main, split: test}'"""
)
LEVELS = ("debug", "info", "warning", "error")


class Help(argparse.RawDescriptionHelpFormatter):
    """Help in the lines of its source. On a terminal prose is filled, and other lines break at spaces."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not sys.stdout.isatty():
            return text
        parts = text.split("\n\n")
        return "\n\n".join(fit_text(part, width) if "\n " in part else self._prose(part, width) for part in parts)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)

    def _prose(self, text: str, width: int) -> str:
        return "\n".join(self._split_lines(text, width))


class Parser(argparse.ArgumentParser):
    """A parser that suggests similar names, and may build its epilog on demand."""

    def format_help(self) -> str:
        if callable(self.epilog):
            self.epilog = self.epilog()
        return super().format_help()

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        whole = message is None or not sys.stderr.isatty()
        super().exit(status, message if whole else fit_text(str(message), get_terminal_size().columns))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices or ()
        if value not in choices and (hint := suggest_name(str(value), map(str, choices))):
            raise argparse.ArgumentError(action, f"there is no {value!r}{hint}")
        super()._check_value(action, value)


def add_command(
    commands: "Commands",
    name: str,
    execute: Callable[[argparse.Namespace], int],
    text: str,
    *,
    epilog: str | Callable[[], str],
    description: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command whose help shows examples."""
    command = commands.add_parser(name, help=text, description=description or text, formatter_class=Help)
    command.epilog = epilog  # type: ignore[assignment]
    command.set_defaults(execute=execute)
    return command


def add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")


def add_config(command: argparse.ArgumentParser, *, over: str = "files and settings that override FILE") -> None:
    """Add FILE and its overrides."""
    command.add_argument("config", type=Path, metavar="FILE", help="a YAML file; see configs/")
    command.add_argument("overrides", nargs="*", default=[], metavar="FILE|key=value", help=over)


def add_config_or_run(command: argparse.ArgumentParser, *, without: str = "") -> None:
    """Add FILE, which may be a run or omitted, and its overrides."""
    file = f"a YAML file, or a run's folder or name{without}"
    command.add_argument("config", nargs="?", type=path_of_run, metavar="FILE", help=file)
    over = "files and settings that override FILE"
    command.add_argument("overrides", nargs="*", metavar="FILE|key=value", help=over)


def add_json(command: argparse.ArgumentParser, text: str = "print one JSON object") -> None:
    command.add_argument("--json", action="store_true", help=text)


def add_screen_options(command: argparse.ArgumentParser) -> None:
    """Add output options and `--dry-run` to a command that runs stages."""
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="check the settings and print the plan, but start, write and download nothing",
    )
    screen = command.add_argument_group("output")
    screen.add_argument(
        "--quiet", action="store_true", help="print errors only. Progress is logged to runs/NAME/logs/driver.log"
    )
    screen.add_argument(
        "--log-level",
        choices=LEVELS,
        help="level of Python logs in runs/NAME/logs/driver.log, and of vLLM's log (default: warning, error)",
    )


def set_log_level(level: str | None) -> None:
    """Set the log level of this process, and of vLLM in its workers. Warnings of Temper are always shown."""
    if level is None:
        return
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level == "error":
        logging.getLogger(OURS).setLevel(logging.WARNING)
    os.environ[VLLM_LEVEL] = level.upper()


def port_number(text: str) -> int:
    """Return the number of a port, 0 for a free one."""
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text} must be a number from 0 to 65535")
    return int(text)


def path_of_run(text: str) -> Path:
    """Return a path, or the run of this name in `RUNS` if the path does not exist."""
    named = Path(RUNS) / text
    return named if named.is_dir() and not Path(text).exists() else Path(text)


def run_folder(given: str, runs_dir: str) -> Path | None:
    """Return the folder of a run by its folder or its name in `runs_dir`. None for a model directory or no run."""
    places = (Path(given), Path(runs_dir) / given)
    found = next((place for place in places if (place / "manifest.json").is_file()), None)
    return None if (Path(given) / "config.json").is_file() else found


def require_run(folder: Path) -> RunDir:
    """Return the run in a folder. Raise `FileNotFoundError` with the existing runs if there is none."""
    if any((folder / name).exists() for name in LEFT):
        return RunDir(folder)
    there = sorted(path.parent.name for path in Path(RUNS).glob("*/config.yaml"))
    has = f"{RUNS}/ has {', '.join(there)}" if there else f"{RUNS}/ of the current folder has no runs"
    raise FileNotFoundError(f"{folder} has no run; use a run's folder or name: {has}")


def model_source(given: str, *, kinds: str) -> "ModelSource":
    """Return a model directory or a name on the hub. Raise `FileNotFoundError` if it is neither, nor one of `kinds`."""
    from temper.orchestrator.config.model_source import ModelSource

    source = ModelSource(path=given)
    if not (source.on_hub or (source.place / "config.json").is_file()):
        raise FileNotFoundError(f"{given} is {kinds} and no hub name")
    return source


def model_directory(given: Path) -> Path:
    """Return a model directory, the folder of a name on the hub, or a run's newest model. Raise `FileNotFoundError`."""
    if (folder := run_folder(str(given), RUNS)) is not None:
        return RunDir(folder).newest_model()
    kinds = "no model directory (it has no config.json) and no run's folder (it has no manifest.json)"
    return model_source(str(given), kinds=kinds).folder
