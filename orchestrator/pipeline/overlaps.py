"""What evaluation prompts of a run have in common with its training prompts, as its folder has it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from temper.envs.data.overlap import NGRAM, Overlap
from temper.orchestrator.run.folder import write_json

FILE = "overlap.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOverlap:
    """The evaluation prompts of an environment, compared with all training prompts of the run."""

    env: str
    training: tuple[str, ...]
    """The training data that they were compared with."""
    found: Overlap
    of: str = ""
    """A hash of the run's settings and files that it was found for."""
    left_out: int = 0
    """Training rows of the environment, of those compared, that its `drop_overlap` leaves out."""

    @property
    def note(self) -> str:
        found = self.found
        compared = f"{found.training}{'' if found.all_compared else ' (no more were compared)'} training prompts"
        return (
            f"evaluation of {self.env}: {len(found.exact)} of {found.prompts} prompts are among {compared}, "
            f"{len(found.shared)} of the {found.long} with {NGRAM} words or more share {NGRAM} words in a row with one"
            + (f"; {found.silent} without a text of the user are not compared" if found.silent else "")
            + (f"; {self.left_out} training rows are left out for it" if self.left_out else "")
        )


def write_overlaps(folder: Path, overlaps: Sequence[EvaluationOverlap]) -> None:
    write_json(folder / FILE, [asdict(overlap) for overlap in overlaps])


def read_overlaps(folder: Path) -> list[EvaluationOverlap]:
    """Read the overlaps; [] of a run whose evaluation prompts are generated."""
    path = folder / FILE
    if not path.is_file():
        return []
    return TypeAdapter(list[EvaluationOverlap]).validate_json(path.read_bytes())
