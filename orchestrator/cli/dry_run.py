"""`--dry-run`: the effect of a command on a run, with the findings of its start."""

import argparse
import json
from dataclasses import asdict, replace

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.preview import Preview, lines
from temper.orchestrator.tools.preflight.doctor.checks import start_notes

NOTHING = "nothing was started, written or downloaded (--dry-run)"


def show_dry_run(preview: Preview, config: Config | None, given: argparse.Namespace) -> int:
    """Print a preview as text or JSON, after the findings of the quick checks; return the exit status.

    `config` is None if the profile can't choose here: then only the machine is checked.
    """
    preview = replace(preview, notes=(*start_notes(config), *preview.notes))
    print(json.dumps(asdict(preview), default=str, indent=1) if given.json else "\n".join([*lines(preview), NOTHING]))
    return 0
