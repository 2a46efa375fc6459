"""What the processes of a run ask of a cluster's GPUs, and what lacks where they do not fit."""

from dataclasses import dataclass


class NoRoomError(RuntimeError):
    """The cluster has fewer GPUs, or fewer free ones, than the run's processes need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs of a cluster."""

    total: float
    free: float

    def share(self, actors: int) -> float:
        """Return the share of a GPU that each of so many actors asks for: none where the cluster has none."""
        return min(self.total, 1.0 if self.total >= actors else 0.5)

    def lacking(self, wanted: float) -> str:
        """Return a line for people on what is missing for so many; empty where they fit."""
        return f"{wanted - self.free:g} more GPUs are needed, {self.taken}" if wanted > self.free else ""

    @property
    def taken(self) -> str:
        """How many are taken, for people."""
        return f"{self.total - self.free:g} of {self.total:g} are taken"
