"""A rank's process without a process: it calls methods by name."""

from collections.abc import Awaitable, Mapping
from typing import Any

from temper.envs.core.process import NOTHING, Place


class PlainProcess:
    """A `Process` that is also its object."""

    place: Place | None = None

    async def wait_until_running(self) -> None: ...

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        return await getattr(self, method)(*args, **named)

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Awaitable[object]:
        raise AssertionError("nobody takes what is pushed here")

    async def put(self, data: object) -> object:
        return data

    async def host(self) -> str:
        return "127.0.0.1"

    def kill(self) -> None: ...

    async def close(self) -> None: ...
