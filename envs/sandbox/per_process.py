"""A value per process, made on first use."""

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value per process. A fork does not share its parent's value, since it can't use the parent's child processes."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[tuple[int, str], T] = {}

    def get(self, purpose: str = "") -> T:
        key = os.getpid(), purpose
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make()
            return self._made[key]
