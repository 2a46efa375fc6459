"""What a run is chosen for: the hardware, the size of its model, and which of its processes there are."""

from dataclasses import dataclass, replace
from typing import get_args

from temper.learner.models.shape import ModelShape
from temper.orchestrator.cluster.hardware import Hardware, Machine
from temper.orchestrator.config.run_config import ProfileName
from temper.orchestrator.pipeline.profiles.asked import ProfiledSettings

GPU_GIB: dict[ProfileName, int] = {
    name: int(name.removeprefix("gpu")) for name in get_args(ProfileName) if name.startswith("gpu")
}
"""Memory of a GPU by profile, the smallest first."""
LACKING = 0.07
"""Share of the memory in a GPU's name that nvidia-smi may not count: 45 GiB are a GPU of 48."""
TOY = 30_000_000
"""Parameters below which a model is one that `init` makes, and is trained in float32 by the usual learning rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Hardware and model of a run."""

    hardware: Hardware
    shape: ModelShape
    trains: bool
    """Whether there will be ranks."""
    plays: bool
    """Whether there will be engines."""
    shared: bool
    """Whether a rank and an engine use each GPU in shifts."""

    @property
    def gpu(self) -> bool:
        """Whether it runs on GPUs."""
        return self.hardware.gpus > 0

    @property
    def toy(self) -> bool:
        """Whether the model is a small one made here."""
        return self.shape.parameters < TOY

    @property
    def halves(self) -> bool:
        """Whether engine and learner have half of the only GPU each, all the time."""
        return self.hardware.gpus == 1 and self.trains and self.plays and not self.shared

    @property
    def gpu_bytes(self) -> float:
        """Memory of a GPU that one process may fill: nine tenths of it, or of its half."""
        return 0.9 * self.hardware.gpu_gib * 2**30 * (0.5 if self.halves else 1.0)


def place_of(hardware: Hardware, shape: ModelShape, asked: ProfiledSettings) -> Place:
    """Return what to choose for."""
    return Place(
        hardware=hardware,
        shape=shape,
        trains=any(stage.trains for stage, _ in asked.stages()),
        plays=asked.plays(),
        shared=asked.value("placement") == "shared",
    )


def name_of(hardware: Hardware) -> ProfileName:
    """Return the profile of what a cluster has: that of its smallest GPU, cpu without any."""
    if not hardware.gpus:
        return "cpu"
    fitting = [name for name, gib in GPU_GIB.items() if hardware.gpu_gib >= gib * (1 - LACKING)]
    return fitting[-1] if fitting else "gpu16"


def as_named(hardware: Hardware, profile: ProfileName) -> Hardware:
    """Return the hardware as a profile says it is: as many GPUs as there are, at least one, of so much memory."""
    if profile == "cpu":
        return Hardware(machines=tuple(replace(machine, gpus=0, gpu_gib=0.0) for machine in hardware.machines))
    gib = float(GPU_GIB[profile])
    named = [_of_size(machine, gib) for machine in hardware.machines]
    if not hardware.gpus:
        named[0] = replace(named[0], gpus=1, gpu_gib=gib)
    return Hardware(machines=tuple(named))


def _of_size(machine: Machine, gib: float) -> Machine:
    return replace(machine, gpu_gib=gib) if machine.gpus else machine


def power_of_two(number: float, *, least: int, most: int) -> int:
    """Return the largest power of two that is no larger, between two of them."""
    power = least
    while power * 2 <= min(number, most):
        power *= 2
    return power
