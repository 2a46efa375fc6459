"""Replays of recorded steps without Ray."""

import io
from typing import TextIO

from rich.console import Console
from support.plain_rank import plain_ranks

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.debug.replay.answer import replay_step
from temper.orchestrator.tools.debug.replay.page import print_replay
from temper.orchestrator.tools.debug.replay.replay import Replay, ReplayRequest


def replay(run: RunDir, step: str, *sets: str, shown: int = 20, screen: TextIO | None = None) -> Replay:
    """Replay a step with plain ranks and a new sibling folder of the run."""
    scratch = run.root.parent / f"scratch-{len(list(run.root.parent.iterdir()))}"
    scratch.mkdir()
    asked = ReplayRequest(step=step, sets=sets, shown=shown)
    return replay_step(run, asked, start=plain_ranks, scratch=scratch, screen=screen or io.StringIO(), deadline_s=60.0)


def page(found: Replay) -> str:
    """Return the text that the command prints."""
    text = io.StringIO()
    print_replay(found, Console(file=text, highlight=False, width=200))
    return text.getvalue()
