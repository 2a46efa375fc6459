"""What commands that run something show: `--quiet`, `--log-level`, and with `--dry-run` what they would do."""

import argparse
import logging
import os

from temper.orchestrator.run.driver import OURS, VLLM_LEVEL

LEVELS = ("debug", "info", "warning", "error")


def add_screen_options(command: argparse.ArgumentParser) -> None:
    """Add the options to a command that runs stages."""
    screen = command.add_argument_group("what is shown")
    screen.add_argument(
        "--quiet", action="store_true", help="show faults alone; progress goes into runs/NAME/logs/driver.log"
    )
    screen.add_argument(
        "--log-level",
        choices=LEVELS,
        help="what Python's loggers write to runs/NAME/logs/driver.log and vLLM to its own log (default: warning, error)",
    )


def add_dry_run(command: argparse.ArgumentParser) -> None:
    """Add the option of a command that can say what it would do."""
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="check all that a start checks, plan, say what would run and go on; nothing is started, written or downloaded",
    )


def require_dry_run(given: argparse.Namespace) -> None:
    """Raise `ValueError` where JSON is asked for of a run at work."""
    if given.json and not given.dry_run:
        raise ValueError("--json is for --dry-run; `temper status RUN --json` tells of a run at work")


def set_log_level(level: str | None) -> None:
    """Let the loggers of this process, and vLLM in its workers, write what is of this level or above it.

    What our own modules warn of is for people, whatever the level.
    """
    if level is None:
        return
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level == "error":
        logging.getLogger(OURS).setLevel(logging.WARNING)
    os.environ[VLLM_LEVEL] = level.upper()
