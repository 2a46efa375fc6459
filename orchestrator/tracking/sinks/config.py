"""Settings of the additional tracking backends, and their requirements."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

from temper.envs.core.setting import free

SINKS = ("wandb",)
"""Backends in addition to MLflow; each name is also its package."""
KEY = "WANDB_API_KEY"
SETUP = "`make setup` installs it, as `pip install --no-deps -r requirements/trackers.txt` does"


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Weights & Biases, for `tracking.also: [wandb]`."""

    project: str = free("temper")
    """Name of the project."""
    entity: str | None = free(None)
    """User or team that owns the project; null is the uploading user's default."""
    mode: Literal["auto", "offline", "online"] = free("auto")
    """offline records in the run's folder for `wandb sync`. online uploads at once. auto is online if WANDB_API_KEY is set,
    else offline."""

    @property
    def uploads(self) -> bool:
        """Whether the run's reports are uploaded at once."""
        return self.mode == "online" or (self.mode == "auto" and bool(os.environ.get(KEY)))


def require_usable(also: list[str], wandb: WandbConfig) -> None:
    """Raise `ValueError` if a backend's package is not installed or a key is missing."""
    for name in also:
        if not is_installed(name):
            raise ValueError(f"tracking.also={also}: the package {name} is not installed; {SETUP}")
    if "wandb" in also and wandb.mode == "online" and not os.environ.get(KEY):
        raise ValueError(
            f"tracking.wandb.mode=online uploads with the key in {KEY}, which is not set; set it, or give "
            f"tracking.wandb.mode=offline and upload later"
        )


def is_installed(name: str) -> bool:
    """Return whether a backend's package is installed."""
    return importlib.util.find_spec(name) is not None
