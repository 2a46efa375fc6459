"""The overlap of evaluation and training prompts, as a run's folder stores it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from temper.envs.data.overlap import NGRAM, Overlap
from temper.orchestrator.run.folder import write_json

FILE = "overlap.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOverlap:
    """The overlap of an environment's evaluation prompts with all training prompts."""

    env: str
    training: tuple[str, ...]
    """The training data compared."""
    found: Overlap
    of: str = ""
    """Hash of the run's settings and files."""
    left_out: int = 0
    """Training rows of the environment that its `drop_overlap` filters, among compared ones."""

    kept: Mapping[str, int] = field(default_factory=dict)
    """Overlapping rows that are trained on, by training data."""

    @property
    def note(self) -> str:
        return "; ".join(filter(None, (self.counts, self.remedy)))

    @property
    def counts(self) -> str:
        found = self.found
        compared = f"{found.training}{'' if found.all_compared else ' (no more were compared)'} training prompts"
        return (
            f"evaluation of {self.env}: {len(found.exact)} of {found.prompts} prompts are among {compared}, "
            f"{len(found.shared)} of the {found.long} with {NGRAM} words or more share {NGRAM} words in a row with one"
            + (f"; {found.silent} without a user's text are not compared" if found.silent else "")
            + (f"; {self.left_out} training rows are filtered for it" if self.left_out else "")
        )

    @property
    def remedy(self) -> str:
        """How to leave overlapping rows out, empty if none is trained on. The setting acts on rows of the environment only."""
        own = f"envs.{self.env}.data="
        others = [name for name in self.kept if not name.startswith(own)]
        by = "exact" if self.found.exact and not self.left_out else "ngrams"
        remedies = [f"envs.{self.env}.drop_overlap={by} leaves such rows out"] if len(others) < len(self.kept) else []
        return "; ".join([*remedies, *(f"remove such rows from {name}" for name in others)])


def write_overlaps(folder: Path, overlaps: Sequence[EvaluationOverlap]) -> None:
    write_json(folder / FILE, [asdict(overlap) for overlap in overlaps])


def read_overlaps(folder: Path) -> list[EvaluationOverlap]:
    """Read the overlaps; [] for a run with generated evaluation prompts."""
    path = folder / FILE
    if not path.is_file():
        return []
    return TypeAdapter(list[EvaluationOverlap]).validate_json(path.read_bytes())
