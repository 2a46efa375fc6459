"""The benchmarks by name. To add one, define a `Preset` in a file of its family and add one line here."""

from collections.abc import Mapping
from typing import Any

from temper.envs.core.bounds import suggest_name
from temper.envs.presets import coding, mathematics, questions, retail, tool_use
from temper.envs.presets.preset import Preset

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        mathematics.GSM8K,
        mathematics.MATH500,
        mathematics.AIME24,
        mathematics.AIME25,
        coding.HUMANEVAL,
        coding.HUMANEVAL_PLUS,
        coding.MBPP,
        coding.MBPP_PLUS,
        coding.LIVECODEBENCH,
        questions.IFEVAL,
        *tool_use.BFCL,
        *tool_use.BFCL_TURNS,
        retail.TAU_RETAIL,
    )
}


def preset_of(name: str) -> Preset:
    if name in PRESETS:
        return PRESETS[name]
    raise ValueError(f"unknown preset {name!r}; use one of {', '.join(PRESETS)}{suggest_name(name, PRESETS)}")


def with_preset(env: str, given: Any) -> Any:
    """Return the settings of an environment, completed by its benchmark if it names one."""
    if not (isinstance(given, Mapping) and given.get("preset") is not None):
        return given
    try:
        return preset_of(given["preset"]).env_settings(given)
    except ValueError as error:
        raise ValueError(f"envs.{env}: {error}") from error
