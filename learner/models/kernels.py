"""Kernels of transformers' models: a GPU's kernels of other packages, or references in plain PyTorch.

transformers looks for a kernel when it imports a model family's file. If there is none it silently uses a reference. On a
GPU the reference of a recurrent layer takes many times the memory and time.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

Device = Literal["cpu", "cuda"]
OPTIONAL = ("causal_conv1d",)
"""Packages whose references are plain operations that a GPU computes well."""


def training_device() -> Device:
    return "cuda" if torch.cuda.is_available() else "cpu"


def find_kernel(function: Callable[..., Any]) -> tuple[str, bool] | None:
    """Return the package of a function's kernel, and whether transformers uses it, or None for other functions."""
    if not inspect.isfunction(function):
        return None
    held = inspect.getclosurevars(function).nonlocals
    if "is_new_implementation" not in held:
        return None
    return str(held["package"]), bool(held["is_new_implementation"])


def find_references(model: nn.Module) -> dict[str, list[str]]:
    """Return the reference functions in the files of a model's layers, by the package that has their kernels."""
    files = {type(module).__module__ for module in model.modules()}
    found: dict[str, list[str]] = {}
    for file in sorted(files):
        for name, function in vars(sys.modules[file]).items():
            kernel = find_kernel(function)
            if kernel is not None and not kernel[1]:
                found.setdefault(kernel[0], []).append(name)
    return found


def require_kernels(model: nn.Module, *, device: Device) -> None:
    """Raise `ValueError` if a GPU would compute a model's recurrent layers by a reference."""
    if device == "cpu":
        return
    missing = {package: names for package, names in find_references(model).items() if package not in OPTIONAL}
    for package, names in missing.items():
        try:
            importlib.import_module(package)
            why = "the package is installed without them"
        except Exception as error:  # an incompatible package may raise anything
            why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{type(model).__name__} can't be trained on this GPU: the kernels of {package} for {', '.join(names)} are "
            f"missing ({why}); references take many times the memory and time. Install them with `make setup`, or run on "
            "CPUs (make setup STACK=cpu)"
        )
