"""The words that a shell completes: the keys of settings, and the values of those that have few."""

from typing import Any, Literal, get_args, get_origin

from temper.envs.catalog import ENVIRONMENTS
from temper.orchestrator.pipeline.reference.catalog import all_settings

OF_ENVIRONMENTS = "envs.*."
"""How the keys begin that every environment has."""


def words_of_settings() -> dict[str, tuple[str, ...]]:
    """Return the keys of all plain settings, those of environments for each that is shipped, and their values if they are few.

    Keys in which the user chooses another word are left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    for key, setting in all_settings().items():
        if setting.part is None:
            names = ENVIRONMENTS if key.startswith(OF_ENVIRONMENTS) else [""]
            keys = [key.replace(OF_ENVIRONMENTS, f"envs.{name}.") for name in names]
            found |= {one: _values(setting.hint) for one in keys if "*" not in one}
    return dict(sorted(found.items()))


def _values(hint: Any) -> tuple[str, ...]:
    """Return what a setting of this type may be given, where that can be listed."""
    if hint is bool:
        return ("true", "false")
    if get_origin(hint) is Literal:
        return tuple(str(one) for one in get_args(hint))
    parts = [one for one in get_args(hint) if one is not type(None)]
    return _values(parts[0]) if len(parts) == 1 and len(get_args(hint)) == 2 else ()
