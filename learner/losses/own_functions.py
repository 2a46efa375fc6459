"""A surrogate or an advantage of one's own: a function of a user's module, written `module.function`, tried before use."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

from learner.losses.advantages import ADVANTAGES, WithinGroup
from learner.losses.surrogates import SURROGATES, Clip, Surrogate, SurrogateFunction, Tokens

OWN = "module.function of your own"
TRIAL_REWARDS = [1.0, 0.0, 0.5]


def is_own(name: str) -> bool:
    """Whether a name means a function of a user's module."""
    return "." in name


def surrogate_function(name: str) -> SurrogateFunction:
    """The surrogate of this name."""
    return _imported("loss.surrogate", name) if is_own(name) else SURROGATES[name]


def advantage_function(name: str) -> WithinGroup:
    """What the advantage of this name does within a group. One of a user's own is checked at every call."""
    if not is_own(name):
        return ADVANTAGES[name]
    function = _imported("loss.advantage", name)
    return lambda rewards_G: _checked_advantages(name, function(list(rewards_G)), rewards_G)


def require_surrogate(name: str) -> None:
    """Raises `ValueError` where a surrogate of one's own can't be imported, called or differentiated."""
    logprobs_BT = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -1.5, -2.5]]).requires_grad_()
    tokens = Tokens(
        logprobs_BT=logprobs_BT,
        old_BT=logprobs_BT.detach() - 0.1,
        advantages_BT=torch.tensor([[1.0] * 3, [-1.0] * 3]),
        trained_BT=torch.ones(2, 3, dtype=torch.bool),
    )
    result = _tried(
        "loss.surrogate", name, "function(tokens, clip=clip)", lambda f: f(tokens, clip=Clip(low=0.2, high=0.2))
    )
    wanted = (
        f"loss.surrogate={name!r} must return a learner.losses.Surrogate whose tensors have the shape of its tokens"
    )
    if not isinstance(result, Surrogate):
        raise ValueError(f"{wanted}; it returned {type(result).__name__}")
    shapes = [tuple(tensor.shape) for tensor in (result.loss_BT, result.ratio_BT, result.clipped_BT)]
    if set(shapes) != {(2, 3)}:
        raise ValueError(f"{wanted}; for two sequences of three tokens these were {shapes}")
    if not result.loss_BT.requires_grad or not result.loss_BT.isfinite().all():
        raise ValueError(f"{wanted}; its loss has no gradient, or is not finite: {result.loss_BT.tolist()}")


def require_advantage(name: str) -> None:
    """Raises `ValueError` where an advantage of one's own can't be imported or does not fit."""
    result = _tried("loss.advantage", name, "function(rewards_G)", lambda function: function(list(TRIAL_REWARDS)))
    _checked_advantages(name, result, TRIAL_REWARDS)


def _imported(setting: str, name: str) -> Callable[..., Any]:
    """The function `module.function`. Raises `ValueError` with the reason."""
    module, _, function = name.rpartition(".")
    try:
        found = vars(importlib.import_module(module)).get(function)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ValueError(
            f"{setting}={name!r}: importing {module!r} from the current folder or the Python path failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ValueError(f"{setting}={name!r}: the module {module!r} has no function {function!r}")
    return found


def _tried(setting: str, name: str, form: str, call: Callable[[Callable[..., Any]], Any]) -> Any:
    function = _imported(setting, name)
    try:
        return call(function)
    except Exception as error:  # whatever a user's function raises
        raise ValueError(f"{setting}={name!r} failed when called as {form}: {type(error).__name__}: {error}") from error


def _checked_advantages(name: str, result: Any, rewards_G: list[float]) -> list[float]:
    try:
        advantages_G = [float(value) for value in result]
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss.advantage={name!r} returned {result!r}, which is no list of numbers") from error
    if len(advantages_G) != len(rewards_G) or not all(map(math.isfinite, advantages_G)):
        raise ValueError(
            f"loss.advantage={name!r} returned {advantages_G} for the rewards {rewards_G}; it must give one finite number "
            f"for each"
        )
    return advantages_G
