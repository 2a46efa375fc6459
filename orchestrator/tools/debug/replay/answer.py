"""The command `debug replay`: list the steps that can be replayed, or replay one."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from temper.orchestrator.cluster.ray_cluster import stop_ray
from temper.orchestrator.run.driver import noise_to
from temper.orchestrator.run.folder import RunDir, finite, write_json
from temper.orchestrator.tools.debug.replay.chain import choose_chain, replayable
from temper.orchestrator.tools.debug.replay.page import print_replay, print_replayable
from temper.orchestrator.tools.debug.replay.replay import Match, Replay, ReplayRequest, replay
from temper.orchestrator.tools.debug.replay.training import Ranks, RayRanks, StartRanks, deadlines_of

WIDTH = 160
PREFIX = "temper-replay-"
LOG = "libraries.log"
"""The output of libraries, in the temporary folder."""


def answer_replayable(run: Path, *, as_json: bool, out: Path | None) -> int:
    """Print the steps of a run that can be replayed. Return the exit status. Raise `FileNotFoundError` if there is no run."""
    found = replayable(RunDir(run.resolve()))
    steps = [chain.as_json() for chains in found.values() for chain in chains.values()]
    _write({"run": str(run.resolve()), "replayable": steps}, as_json=as_json, out=out)
    if not as_json:
        print_replayable(found, Console(highlight=False))
    return 0


def answer_replay(
    run: Path, asked: ReplayRequest, *, as_json: bool, out: Path | None, scratch: Path | None, deadline_s: float | None
) -> int:
    """Replay a step and print the differences. Return the exit status, 1 unless the step matches.

    Raise `ValueError` if it cannot be replayed. If the replay fails, the output of libraries and ranks is kept in a file.
    """
    folder = RunDir(run.resolve())
    choose_chain(folder, asked.step)  # before anything is started
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=scratch) as place,
        _kept_on_failure(Path(place) / LOG, scratch),
        os.fdopen(os.dup(2), "w", buffering=1) as screen,
        noise_to(Path(place) / LOG),
    ):
        try:
            found = replay_step(
                folder, asked, start=RayRanks(), scratch=Path(place), screen=screen, deadline_s=deadline_s
            )
        finally:
            stop_ray()
    _write(found.as_json(), as_json=as_json, out=out)
    if not as_json:
        print_replay(found, Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH))
    return 0 if found.match is Match.SAME else 1


def _write(data: dict[str, Any], *, as_json: bool, out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, data)
    if as_json:
        print(json.dumps(finite(data), indent=1, allow_nan=False))


@contextmanager
def _kept_on_failure(log: Path, folder: Path | None) -> Iterator[None]:
    """If the block fails, copy the log into a new file of the folder, and print its name."""
    try:
        yield
    except Exception:
        if log.is_file() and log.stat().st_size:
            with suppress(OSError):  # a full disk must not hide the error
                number, kept = tempfile.mkstemp(prefix=PREFIX, suffix=".log", dir=folder)
                os.close(number)
                shutil.copyfile(log, kept)
                print(f"the output of libraries is in {kept}", file=sys.stderr)
        raise


def replay_step(
    run: RunDir, asked: ReplayRequest, *, start: StartRanks, scratch: Path, screen: TextIO, deadline_s: float | None
) -> Replay:
    """Replay a step with ranks that `start` starts, and end them.

    Deadlines are the run's. `deadline_s` is the deadline of a step and the minimum of all others.
    """
    note = partial(print, file=screen, flush=True)

    async def work() -> Replay:
        ranks = Ranks(start, scratch=scratch, note=note, limits=deadlines_of(run), deadline_s=deadline_s)
        try:
            return await replay(run, asked, ranks, note=note)
        finally:
            await ranks.close()

    return asyncio.run(work())
