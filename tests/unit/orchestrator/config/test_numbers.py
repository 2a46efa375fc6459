"""Every numeric setting of the whole schema refuses numbers that no run can use, with its key."""

from collections.abc import Iterator
from math import inf, nan
from typing import Any, get_args, get_origin

import pytest

from temper.envs.core.bounds import SettingError
from temper.envs.core.setting import field_hints, part_of
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.pipeline.config import SCHEMA

ALLOWED = {
    "envs.NAME.weights": "a part of the reward may be a penalty",
    "loss.malformed_thinking": "an advantage",
    "loss.invalid_call": "an advantage",
    "bands.mismatch_abs.low": "a metric may have any value, and so may the bound below it",
    "bands.mismatch_abs.high": "likewise",
    "bands.entropy.low": "likewise",
    "bands.entropy.high": "likewise",
    "bands.truncated.low": "likewise",
    "bands.truncated.high": "likewise",
    "bands.nonzero_advantage.low": "likewise",
    "bands.nonzero_advantage.high": "likewise",
    "bands.kl.low": "likewise",
    "bands.kl.high": "likewise",
}
"""Settings of which -1 is a value, with the reason."""
JUDGE = {"url": "http://127.0.0.1:1", "model": "m"}


def numbers(config: type, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of each numeric setting, with the list or dict that holds its numbers if any."""
    for name, hint in field_hints(config).items():
        path, (section, shape) = (*above, name), part_of(hint)
        if section is not None:
            yield from numbers(section, (*path, "NAME") if shape == "each" else path)
            continue
        parts = [hint, *get_args(hint)]
        holder = next((part for part in parts if get_origin(part) in (list, dict)), None)
        if {int, float} & {*parts, *get_args(holder)}:
            yield path, get_origin(holder)


NUMBERS = [(path, holder) for path, holder in numbers(SCHEMA) if path[-1] != "idle_gpus"]


def given(path: tuple[str, ...], holder: Any, number: float) -> dict[str, Any]:
    value: Any = [number] if holder is list else {"NAME": number} if holder is dict else number
    for word in reversed(path):
        value = {word: value | (JUDGE if word == "judge" else {})} if isinstance(value, dict) else {word: value}
    settings: dict[str, Any] = value
    return {"name": "x"} | settings


def key_of(path: tuple[str, ...]) -> str:
    """Return the key without its stage, as several stages have it."""
    return ".".join(path[1:] if path[0] in ("rl", "distill") else path)


@pytest.mark.parametrize("number", [nan, inf, -inf, 1e30, -1])
def test_each_number_that_no_run_can_use_is_refused_with_its_key(number: float) -> None:
    allowed, unnamed = set(), []
    for path, holder in NUMBERS:
        try:
            to_settings(SCHEMA, given(path, holder, number))
        except ValueError as error:
            name = error.key if isinstance(error, SettingError) else str(error)
            unnamed += [(path, error)] if path[-1] not in name and path[-2] not in name else []
        else:
            allowed.add(key_of(path))
    assert unnamed == []
    assert allowed <= (ALLOWED.keys() if number == -1 else set())


def test_the_whole_schema_is_tried() -> None:
    keys = {".".join(path) for path, _ in NUMBERS}
    assert {"seed", "envs.NAME.share", "sft.shares", "rl.loss.token_range", "eval.budget_shares"} <= keys
    assert len(keys) > 200


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_any_seed_of_64_bits_is_one(seed: int) -> None:
    assert to_settings(SCHEMA, {"name": "x", "seed": seed}).seed == seed


@pytest.mark.parametrize(
    ("key", "number"),
    [("seed", 2**63), ("deadlines.step_s", 1e10), ("eval.timeout_s", 0), ("model.fresh.hidden_size", 0)],
)
def test_a_number_that_a_library_would_refuse_later_is_refused(key: str, number: float) -> None:
    with pytest.raises(ValueError, match=key):
        to_settings(SCHEMA, given(tuple(key.split(".")), None, number))
