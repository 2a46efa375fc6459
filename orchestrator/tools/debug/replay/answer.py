"""The answers of the command `debug replay`: which steps there are, and a replay from the start of its ranks to their end."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from temper.orchestrator.cluster.ray_cluster import stop_ray
from temper.orchestrator.run.driver import noise_to
from temper.orchestrator.run.folder import RunDir, finite, write_json
from temper.orchestrator.tools.debug.replay.chain import chosen, replayable
from temper.orchestrator.tools.debug.replay.page import print_replay, print_replayable
from temper.orchestrator.tools.debug.replay.replay import Replay, ReplayRequest, Verdict, replay
from temper.orchestrator.tools.debug.replay.training import Ranks, RayRanks, StartRanks, deadlines_of

WIDTH = 160
PREFIX = "temper-replay-"
LOG = "libraries.log"
"""What libraries print, in the temporary folder."""


def answer_replayable(run: Path, *, as_json: bool, out: Path | None) -> int:
    """Print which steps of a run can be replayed; returns the exit status. Raise `FileNotFoundError` where there is no run."""
    found = replayable(RunDir(run.resolve()))
    steps = [chain.as_json() for chains in found.values() for chain in chains.values()]
    data = {"run": str(run.resolve()), "replayable": steps}
    _write(out, data)
    if as_json:
        print(json.dumps(data, indent=1))
    else:
        print_replayable(found, Console(highlight=False))
    return 0


def answer_replay(
    run: Path, asked: ReplayRequest, *, as_json: bool, out: Path | None, scratch: Path | None, deadline_s: float | None
) -> int:
    """Replay a step and print what differs; returns the exit status, 1 where it is not shown to be as recorded.

    Raise `ValueError` where that can't be. What libraries printed, ranks too, is kept in a file that is named where it fails.
    """
    folder = RunDir(run.resolve())
    chosen(folder, asked.step)  # before anything is started
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=scratch) as place,
        _kept_on_failure(Path(place) / LOG, scratch),
        os.fdopen(os.dup(2), "w", buffering=1) as screen,
        noise_to(Path(place) / LOG),
    ):
        try:
            found = replayed(folder, asked, start=RayRanks(), scratch=Path(place), screen=screen, deadline_s=deadline_s)
        finally:
            stop_ray()
    _write(out, found.as_json())
    if as_json:
        print(json.dumps(finite(found.as_json()), indent=1, allow_nan=False))
    else:
        print_replay(found, Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH))
    return 0 if found.verdict is Verdict.SAME else 1


def _write(out: Path | None, data: dict[str, Any]) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, data)


@contextmanager
def _kept_on_failure(log: Path, folder: Path | None) -> Iterator[None]:
    """Copy a log where what is done with it fails, into a new file of a folder, and name that."""
    try:
        yield
    except Exception:
        if log.is_file() and log.stat().st_size:
            with suppress(OSError):  # a full disk is not to hide what failed
                number, kept = tempfile.mkstemp(prefix=PREFIX, suffix=".log", dir=folder)
                os.close(number)
                shutil.copyfile(log, kept)
                print(f"{kept} has what libraries printed", file=sys.stderr)
        raise


def replayed(
    run: RunDir, asked: ReplayRequest, *, start: StartRanks, scratch: Path, screen: TextIO, deadline_s: float | None
) -> Replay:
    """Replay a step with ranks that `start` starts, which are ended in any case; what is under way is told on the screen.

    Deadlines are those of the run; `deadline_s` is that of a step, and of all else that would end sooner.
    """

    def note(text: str) -> None:
        print(text, file=screen, flush=True)

    async def work() -> Replay:
        ranks = Ranks(start, scratch=scratch, note=note, limits=deadlines_of(run), deadline_s=deadline_s)
        try:
            return await replay(run, asked, ranks, note=note)
        finally:
            await ranks.close()

    return asyncio.run(work())
