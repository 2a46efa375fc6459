"""The machines of a cluster: GPUs with their memory, main memory, CPU cores. `hardware.py` finds them."""

from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    gpus: int
    gpu_gib: float
    """Memory of its smallest GPU, 0 without GPUs."""
    memory_gib: float
    cpus: int
    """Cores available to its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machines of a cluster."""

    machines: tuple[Machine, ...]

    @property
    def gpus(self) -> int:
        return sum(machine.gpus for machine in self.machines)

    @property
    def gpu_gib(self) -> float:
        """Memory of the smallest GPU, 0 without GPUs."""
        return min((machine.gpu_gib for machine in self.machines if machine.gpus), default=0.0)

    @property
    def gpus_together(self) -> int:
        """The most GPUs of one machine."""
        return max(machine.gpus for machine in self.machines)

    @property
    def memory_gib(self) -> float:
        """Main memory of the smallest computing machine: one with GPUs, if any has GPUs."""
        return min(machine.memory_gib for machine in self._computing)

    @property
    def cpus(self) -> int:
        """Cores of the smallest computing machine."""
        return min(machine.cpus for machine in self._computing)

    @property
    def _computing(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.gpus] or list(self.machines)

    def describe(self) -> str:
        """Return it for people: "8 GPUs of 80 GiB on 1 machine", "2 CPU cores and 23 GiB"."""
        count = len(self.machines)
        where = f" on {count} machines" if count > 1 else ""
        if not self.gpus:
            return f"{self.cpus} CPU core{'s' * (self.cpus != 1)} and {self.memory_gib:.0f} GiB of memory{where}"
        return f"{self.gpus} GPU{'s' * (self.gpus != 1)} of {self.gpu_gib:.0f} GiB{where}"
