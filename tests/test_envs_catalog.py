"""The catalog: it lists every family, and each says what it is in its own folder."""

from importlib import import_module
from pathlib import Path

import envs
from envs.catalog import ENVIRONMENTS

FAMILIES = sorted(path.parent.name for path in Path(envs.__file__).parent.glob("*/env.py"))


def test_each_family_says_what_it_is_beside_the_class_that_plays_it() -> None:
    modules = {f"envs.{family}.env": import_module(f"envs.{family}.env") for family in FAMILIES}
    listed = {definition.entry_point.partition(":")[0]: definition for definition in ENVIRONMENTS.values()}
    assert listed == {name: module.ENVIRONMENT for name, module in modules.items()}
