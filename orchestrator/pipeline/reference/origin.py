"""Where the value of a setting comes from: the command line, a file, a standard set, a profile, or its default."""

from collections.abc import Mapping
from typing import Any

from temper.orchestrator.pipeline.reference.resolved_file import ResolvedFile


def origin(key: str, file: ResolvedFile) -> str:
    """Return where the value of a key comes from, in words."""
    if above := _layer(key, file):
        return above
    first, _, rest = key.partition(".")
    instance = next((one for one in file.instances if one.name == first), None)
    if instance is None:
        return _shared_origin(key, file)
    if stands(instance.given, rest):
        return f"{_layer('stages', file) or file.path}, in its entry of `stages`"
    general = f"{instance.stage.name}.{rest}"
    return _shared_origin(key, file) if general == key else f"as {general}: {origin(general, file)}"


def _layer(key: str, file: ResolvedFile) -> str:
    """Return the name of what gives a key above the file; "" where nothing does."""
    return next((name for name, given in reversed(file.layers) if stands(given, key)), "")


def _shared_origin(key: str, file: ResolvedFile) -> str:
    chosen = file.chosen
    by_profile = f"profile {chosen.profile} ({chosen.hardware})"
    if stands(file.given, key):
        recorded = "chosen" in file.given and key in chosen.settings
        return f"{by_profile}, recorded in {file.path}" if recorded else str(file.path)
    if key in chosen.settings:
        return by_profile
    if stands(file.whole, key) and key.startswith("envs."):
        env = key.split(".")[1]
        return f"the standard set {file.given['envs'][env]['preset']}"
    return "default"


def stands(given: object, key: str) -> bool:
    """Return whether a value is given under a dotted key, null too; a text in place of a section gives what is in it."""
    value: Any = given
    for word in key.split("."):
        if isinstance(value, str):
            return True
        if not isinstance(value, Mapping) or word not in value:
            return False
        value = value[word]
    return True
