"""The learner's ranks that hold an expert's weights, by the name of a checkpoint's tensor."""

import re
from dataclasses import dataclass

EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
"""The number of an expert in the name of its tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOwners:
    """Groups of `ranks` neighbouring ranks, in which each rank holds `experts_per_rank` consecutive experts of every layer."""

    ranks: int = 1
    experts_per_rank: int = 0

    def find_owner(self, tensor: str) -> int | None:
        """Return the place in each group of the rank that holds a tensor, or None if all ranks hold it."""
        found = EXPERT.search(tensor) if self.ranks > 1 else None
        return None if found is None else int(found[0]) // self.experts_per_rank

    def to_checkpoint_name(self, tensor: str, *, place: int) -> str:
        """Convert the expert number in a tensor's name from the number in its rank to the number in the checkpoint."""
        return EXPERT.sub(lambda found: str(int(found[0]) + place * self.experts_per_rank), tensor)


UNSHARED = ExpertOwners()
