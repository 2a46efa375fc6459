"""Imports transformers without scikit-learn, SciPy and pandas, which take a quarter of a process's start.

transformers imports them for two functions, of assisted generation and of object detection, and no setting prevents that.
Import this module before the models of transformers.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

FUNCTIONS = {"sklearn.metrics": "roc_curve", "scipy.optimize": "linear_sum_assignment"}
USERS = ("transformers.generation.candidate_generator", "transformers.loss.loss_utils")


class _Deferred(ModuleType):
    """Gives one function that imports its module when it is called. All other names import the module at once."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for these
            raise AttributeError(name)
        if name != FUNCTIONS[self.__name__]:
            return getattr(self._load(), name)
        return lambda *args, **named: getattr(self._load(), name)(*args, **named)

    def _load(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


def _import_users() -> None:
    deferred = {name: _Deferred(name) for name in FUNCTIONS if name not in sys.modules}
    sys.modules.update(deferred)
    try:
        for user in USERS:
            importlib.import_module(user)
    finally:
        for name, module in deferred.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


_import_users()
