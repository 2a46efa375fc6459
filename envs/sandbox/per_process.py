"""What a process keeps for itself, made when it is first asked for."""

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value for each process and purpose: a fork does not share its parent's, whose child processes are not its own."""

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
