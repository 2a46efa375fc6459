"""`--dry-run`: what a command would do to a run, what its start would say, and which limits of its plan would be hit."""

import argparse
import json
from dataclasses import asdict, dataclass, replace

from temper.envs.data.hub import cache_alone
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.preview import Preview, lines
from temper.orchestrator.tools.preflight.doctor.checks import start_notes
from temper.orchestrator.tools.preflight.doctor.subject import Subject
from temper.orchestrator.tools.preflight.plan.limits import Limit, advised, run_limits
from temper.orchestrator.tools.preflight.plan.plan import limit_lines

NOTHING = "nothing was started, written or downloaded (--dry-run)"
NOT_PLANNED = "the limits of its plan, which goes by the hardware and the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a command would do, with the limits that it would meet on this machine."""

    preview: Preview
    limits: tuple[Limit, ...]
    advised: tuple[Limit, ...]
    """What it may do with less of."""

    def text(self, *, as_json: bool) -> str:
        """Return it for people, or as one JSON object."""
        if as_json:
            limits = {"limits": [asdict(one) for one in self.limits], "advised": [asdict(one) for one in self.advised]}
            return json.dumps(asdict(self.preview) | limits, default=str, indent=1)
        planned = [f"  {line}" for line in limit_lines(self.limits, self.advised)]
        return "\n".join([*lines(self.preview), *(["limits of its plan:"] if planned else []), *planned, NOTHING])


def show_dry_run(preview: Preview, config: Config | None, given: argparse.Namespace) -> int:
    """Print what would be done, as the command line asks for it; returns the exit status."""
    print(dry_run(preview, config).text(as_json=given.json))
    return 0


def dry_run(preview: Preview, config: Config | None) -> DryRun:
    """Return what would be done with what its start would say first, and with the limits of its plan.

    `config` is None where the profile can't choose here: of the machine alone something is known then.
    """
    preview = replace(preview, notes=(*start_notes(config), *preview.notes))
    subject = Subject(given=config)
    if config is None or subject.joins or subject.to_download:
        return DryRun(preview=replace(preview, unknown=(*preview.unknown, NOT_PLANNED)), limits=(), advised=())
    try:
        with cache_alone():
            planner = subject.planner
            limits, may = tuple(run_limits(planner)), tuple(advised(planner))
    except (OSError, ValueError) as error:  # an estimate, without which the rest is still true
        unknown = f"{NOT_PLANNED}: {error}"
        return DryRun(preview=replace(preview, unknown=(*preview.unknown, unknown)), limits=(), advised=())
    return DryRun(preview=preview, limits=limits, advised=may)
