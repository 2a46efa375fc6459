"""What transformers' models compute with: a GPU's kernels of other packages, or references in plain PyTorch.

transformers looks for a kernel when it imports a family's file, and where it finds none it takes a reference without a
word that a run would show. On a GPU the reference of a recurrent layer takes many times the memory and the time.
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
"""Packages whose references are plain operations that a GPU computes well too."""


def training_device() -> Device:
    """Return where models are trained on this machine."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def kernel_of(function: Callable[..., Any]) -> tuple[str, bool] | None:
    """Return which package would have a kernel for a function of transformers, and whether that is what it calls.

    None for a function that is nothing else than itself.
    """
    if not inspect.isfunction(function):
        return None
    held = inspect.getclosurevars(function).nonlocals
    if "is_new_implementation" not in held:
        return None
    return str(held["package"]), bool(held["is_new_implementation"])


def references(model: nn.Module) -> dict[str, list[str]]:
    """Return the functions beside a model's layers that are references, by the package that has their kernels."""
    files = {type(module).__module__ for module in model.modules()}
    found: dict[str, list[str]] = {}
    for file in sorted(files):
        for name, function in vars(sys.modules[file]).items():
            kernel = kernel_of(function)
            if kernel is not None and not kernel[1]:
                found.setdefault(kernel[0], []).append(name)
    return found


def require_kernels(model: nn.Module, *, device: Device) -> None:
    """Raise `ValueError` where a GPU would compute a model's recurrent layers by a reference."""
    if device == "cpu":
        return
    missing = {package: names for package, names in references(model).items() if package not in OPTIONAL}
    for package, names in missing.items():
        try:
            importlib.import_module(package)
            why = "Python imports it, but it lacks them"
        except Exception as error:  # whatever a package of kernels raises where it does not fit
            why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{type(model).__name__} can't be trained on this GPU: the kernels of {package} are missing, without which "
            f"{', '.join(names)} would take many times the memory and time ({why}). `make setup` says how it installs "
            "them; a run on CPUs needs none (make setup STACK=cpu)"
        )
