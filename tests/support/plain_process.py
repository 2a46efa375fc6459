"""A rank's process without a process: it calls methods by name."""

from collections.abc import Awaitable, Mapping
from typing import Any

from temper.envs.core.process import NOTHING, Place, ResultLost, StoredResult


class PlainResult:
    """A stored result in this process, until it is lost."""

    def __init__(self, result: Any) -> None:
        self.result, self.lost = result, False

    async def read(self) -> Any:
        if self.lost:
            raise ResultLost("a test lost it")
        return self.result


class PlainProcess:
    """A `Process` that is also its object."""

    place: Place | None = None

    async def wait_until_running(self) -> None: ...

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        return await getattr(self, method)(*args, **named)

    async def call_stored(self, method: str, *args: object) -> tuple[Any, StoredResult]:
        first, second = await self.call(method, *args)
        return first, PlainResult(second)

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Awaitable[object]:
        raise AssertionError("nobody takes what is pushed here")

    async def put(self, data: object) -> object:
        return data

    async def host(self) -> str:
        return "127.0.0.1"

    def kill(self) -> None: ...

    async def close(self) -> None: ...
