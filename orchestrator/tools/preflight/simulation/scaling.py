"""The studies of docs/scaling.md: `make scaling` simulates them, draws their pictures, and writes their tables between markers.

`python -m temper.orchestrator.tools.preflight.simulation.scaling [--only NAME ...]` takes some minutes of one core,
most of them for 4,096 engines.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from temper.orchestrator.run.driver import keep_driver_small
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.simulation.answer import shown_study, table_text
from temper.orchestrator.tools.preflight.simulation.pictures import study_svg
from temper.orchestrator.tools.preflight.simulation.study import Asked, Row, ground_of

CONFIG, GPUS = Path("configs/scaling.yaml"), "8xH100-80G"
PAGE, PICTURES = Path("docs/scaling.md"), Path("docs/pictures")
MANY_DEATHS = "supervision.restarts=1000000"
"""So that a study of failures goes on where the default would end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question and the cases that answer it."""

    name: str
    asked: Asked
    overrides: tuple[str, ...] = ()


STUDIES = (
    Study(name="engines", asked=Asked(engines=(1, 2, 4, 8, 16, 32), lags=(0, 1, 2, 4))),
    Study(
        name="fleet",
        asked=Asked(engines=(1, 8, 64, 512), lags=(0, 1), grow=True, steps=2),
        overrides=("rl.groups_per_step=16",),
    ),
    Study(
        name="largest",
        asked=Asked(engines=(4096,), lags=(1,), grow=True, steps=1),
        overrides=("rl.groups_per_step=16",),
    ),
    Study(
        name="tails",
        asked=Asked(engines=(8,), lags=(0, 1, 3), over_sampling=(0.5, 1.0, 3.0), tails=(0.0, 0.4, 0.8, 1.2), steps=12),
    ),
    Study(
        name="failures",
        asked=Asked(engines=(64,), lags=(0, 1), deaths=(0.0, 0.1, 0.3, 1.0, 3.0), grow=True, steps=24),
        overrides=("rl.groups_per_step=16", MANY_DEATHS),
    ),
)


def run(study: Study) -> list[Row]:
    """Return what the cases of a study measured."""
    return shown_study(ground_of(CONFIG, study.overrides, gpus=GPUS, assumptions=Assumptions()), study.asked)


def written(page: str, name: str, text: str) -> str:
    """Return a page with this text between the markers of a study. Raise `ValueError` where it has none."""
    begin, end = f"<!-- {name}: written by make scaling -->", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{PAGE} has no markers {begin} and {end}")
    return f"{before}{begin}\n```text\n{text}\n```\n{end}{after}"


def main(arguments: Sequence[str]) -> None:
    """Simulate the studies, and write their pictures and tables."""
    parser = argparse.ArgumentParser(
        prog="python -m temper.orchestrator.tools.preflight.simulation.scaling", description=__doc__
    )
    parser.add_argument("--only", nargs="*", choices=[study.name for study in STUDIES], help="these studies alone")
    given = parser.parse_args(arguments)
    keep_driver_small()
    for study in STUDIES:
        if given.only is None or study.name in given.only:
            rows = run(study)
            if len(rows) > 1:
                (PICTURES / f"scaling_{study.name}.svg").write_text(study_svg(rows), encoding="utf-8")
            PAGE.write_text(written(PAGE.read_text("utf-8"), study.name, table_text(rows)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
