"""Tests that are coroutines."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")
LIMIT_S = 20.0


def in_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run a test in a separate event loop for at most `LIMIT_S` seconds."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **named), LIMIT_S))

    return run
