"""Temper: post-training of reasoning language models across many environments at once.

`temper.train`, `temper.evaluate` and `temper.serve` do what the commands do; `temper.TrainedRun` reads a run's folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temper.orchestrator.api import ModelServer, TrainedRun, evaluate, serve, train

__all__ = ["ModelServer", "TrainedRun", "evaluate", "serve", "train"]


def __getattr__(name: str) -> Any:
    """Import the API when it is first used: packages of Temper that need none of it stay quick."""
    if name not in __all__:
        raise AttributeError(f"module 'temper' has no attribute {name!r}")
    return getattr(import_module("temper.orchestrator.api"), name)
