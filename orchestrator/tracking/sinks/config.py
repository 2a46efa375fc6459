"""The settings of the second places to which a run reports, and what they need to be used."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

from temper.envs.core.setting import free

SINKS = ("wandb", "trackio")
"""What a run can report to beside MLflow; each is the name of its package too."""
KEY = "WANDB_API_KEY"
SETUP = "`make setup` installs it, as `pip install --no-deps -r requirements/trackers.txt` does"


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Weights & Biases, for `tracking.also: [wandb]`."""

    project: str = free("temper")
    """Name of the project."""
    entity: str | None = free(None)
    """User or team that the project is of; null is the default of whoever uploads it."""
    mode: Literal["auto", "offline", "online"] = free("auto")
    """offline records in the run's folder, and `wandb sync` uploads it; online uploads at once; auto is online where
    WANDB_API_KEY is set, else offline."""

    @property
    def uploads(self) -> bool:
        """Whether what the run reports is uploaded at once."""
        return self.mode == "online" or (self.mode == "auto" and bool(os.environ.get(KEY)))


@dataclass(frozen=True, kw_only=True)
class TrackioConfig:
    """Trackio, for `tracking.also: [trackio]`: a store in files, from which nothing is sent."""

    project: str = free("temper")
    """Name of the project."""
    dir: str | None = free(None)
    """Folder of the store; null takes TRACKIO_DIR, else `trackio` beside the runs."""


def require_usable(also: list[str], wandb: WandbConfig) -> None:
    """Raise `ValueError` where a place can't be reported to: its package is not installed, or a key is missing."""
    for name in also:
        if not is_installed(name):
            raise ValueError(f"tracking.also={also}: the package {name} is not installed; {SETUP}")
    if "wandb" in also and wandb.mode == "online" and not os.environ.get(KEY):
        raise ValueError(
            f"tracking.wandb.mode=online uploads with the key in {KEY}, which is not set; set it, or give "
            f"tracking.wandb.mode=offline and upload later"
        )


def is_installed(name: str) -> bool:
    """Return whether the package of a place is there."""
    return importlib.util.find_spec(name) is not None
