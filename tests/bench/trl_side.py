"""The same work for TRL, and its process."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

ANSWER_S = 600.0
"""Deadline of a part of the work, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlWork:
    """Work for TRL: answers to prompts, which are rendered texts, by a model directory."""

    model: str
    prompts: tuple[str, ...]
    group_size: int
    answers: int
    """Answers of a step."""
    answer_tokens: int
    learning_rate: float
    threads: int
    recompute: bool
    """Whether it recomputes activations for the backward pass, as by default."""

    def store(self, path: Path) -> Path:
        """Write it to a file and return the path."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> "TrlWork":
        """Read the file that `store` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "prompts": tuple(data["prompts"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some steps: wall seconds, CPU seconds of all processes, answers and their tokens."""

    seconds: float
    cpu_s: float
    answers: int
    tokens: int


def trl_is_there() -> bool:
    """Return whether TRL, a part of `requirements/dev.txt`, is installed."""
    return find_spec("trl") is not None


class TrlSide:
    """TRL's trainer in a separate process, idle between its parts."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, work: Path) -> "TrlSide":
        """Start the process on a file of `TrlWork`."""
        command = (sys.executable, "-m", "bench.trl_process", str(work))
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=env))

    async def steps(self, count: int) -> Part:
        """Run so many steps. Raises `RuntimeError` if it ends, `TimeoutError` if it hangs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n".encode())
        async with asyncio.timeout(ANSWER_S):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"TRL's process ended with status {await self._process.wait()}; its own words are above")
        return Part(**json.loads(line))

    async def close(self) -> None:
        """Kill the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()  # to the ends of its pipes, which are closed then
