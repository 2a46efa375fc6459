"""The catalog lists every family."""

from importlib import import_module
from pathlib import Path

import temper.envs
from temper.envs.catalog import ENVIRONMENTS

ROOM = Path(temper.envs.__file__).parent
MODULES = [
    f"temper.envs.{path.parent.name}.{path.stem}"
    for path in ROOM.glob("*/*.py")
    if "\nENVIRONMENT = " in path.read_text()
]


def test_the_catalog_has_the_definition_of_each_family() -> None:
    found = [import_module(name).ENVIRONMENT for name in MODULES]
    assert len(found) == len(ENVIRONMENTS)
    assert {one.id: one for one in found} == ENVIRONMENTS
