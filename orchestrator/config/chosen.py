"""Profiles: what the settings that depend on the hardware are chosen for, and what was chosen for a run."""

from dataclasses import dataclass
from typing import Any, Literal

from temper.envs.core.setting import running

ProfileName = Literal[
    "auto", "cpu", "gpu16", "gpu24", "gpu32", "gpu40", "gpu48", "gpu80", "gpu96", "gpu141", "gpu180", "gpu270"
]
"""auto asks the cluster; the others say what it has: CPUs, or GPUs with so many GiB of memory each."""

Placement = Literal["dedicated", "shared"]
"""dedicated gives each engine and each rank devices of its own, shared the same ones to both, in shifts."""


@dataclass(frozen=True, kw_only=True)
class ChosenConfig:
    """What a profile set. A run writes it into its `config.yaml`, and goes on with it; nobody has to give it."""

    profile: ProfileName = running("auto")
    """The profile by which it was chosen; auto where nothing was."""
    hardware: str = running("")
    """What the cluster had, in words."""
    placement: Placement = running("dedicated")
    """The placement for which it was chosen."""
    idle_gpus: int = running(0)
    """How many of its GPUs the run leaves without a process."""
    settings: dict[str, Any] = running({})
    """The settings that were chosen, by key; those that were given, or are as they are without being told, are not here."""
