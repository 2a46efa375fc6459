"""What the end of a command's work is to the shell: a status, and a line of what was wrong in place of a traceback."""

import sys
from collections.abc import Callable

from temper.orchestrator.cli.unread_output import is_unread
from temper.orchestrator.loop.deadline import STOPPED, StuckError
from temper.orchestrator.run.checkpoint import DamagedCheckpointError
from temper.orchestrator.run.redaction import blanked
from temper.rollout.pool.restarts import TooManyRestarts

FAULT = 1
"""Exit status of a fault of the machine, of a library or of what lies on the disk."""
MISTAKE = 2
"""Exit status of a mistake in the input."""
GAVE_UP = 3
"""Exit status of a run in which something hung, or died more often than it may."""


def exit_status(work: Callable[[], int]) -> int:
    """Return the exit status of a command's work: its own, or that of a mistake, a fault or an interrupt, which is told.

    Output that nobody reads on is left to `ends_unread`; what else is raised is a fault of this program.
    """
    try:
        return work()
    except KeyboardInterrupt:  # of a run the second one: the first asks it to stop
        print("interrupted: stopped at once (the same command continues a run)", file=sys.stderr)
        return STOPPED
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {blanked(str(error))}", file=sys.stderr)
        return MISTAKE
    except (StuckError, TooManyRestarts) as error:
        _tell_fault(error)
        return GAVE_UP
    except BrokenPipeError as error:
        if is_unread():
            raise
        _tell_fault(error)
        return FAULT
    except (DamagedCheckpointError, OSError, RuntimeError) as error:
        _tell_fault(error)
        return FAULT


def _tell_fault(error: Exception) -> None:
    print(f"fault: {type(error).__name__}: {blanked(str(error))}", file=sys.stderr)
