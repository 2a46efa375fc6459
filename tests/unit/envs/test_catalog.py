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
    modules = {name: import_module(name) for name in MODULES}
    listed = {definition.entry_point.partition(":")[0]: definition for definition in ENVIRONMENTS.values()}
    assert listed == {name: module.ENVIRONMENT for name, module in modules.items()}
