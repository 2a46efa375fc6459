"""The live page of a run: its facts as JSON, polled by a page of HTML, and the viewer below it."""

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.status.facts import gather
from temper.orchestrator.tools.inspect.viewer.loopback import HTML, JSON, NOTHING, PageAnswer
from temper.orchestrator.tools.inspect.viewer.page import filled
from temper.orchestrator.tools.inspect.viewer.server import Shelf

BODY = Path(__file__).with_name("status.html")
FACTS = "/facts.json"
VIEW = "/view"


class LivePage:
    """What lies where: the page at "/", its facts at `FACTS`, the viewer of the run's answers below `VIEW`."""

    def __init__(self, run: RunDir, *, now: Callable[[], float] = time.time) -> None:
        """`now` is a clock in seconds since 1970."""
        self._run = run
        self._now = now
        self._shelf: Shelf | None = None

    def answer(self, path: str) -> PageAnswer:
        """Return what lies at a path; may be asked from several threads."""
        if path == "/":
            facts = {"run": self._run.root.resolve().name}
            page = filled(BODY, facts, title="temper status", code=[BODY.with_suffix(".js")])
            return PageAnswer(body=page.encode(), kind=HTML)
        if path == FACTS:
            return self._facts()
        if path.startswith(f"{VIEW}/"):
            if self._shelf is None:
                self._shelf = Shelf(self._run)
            return self._shelf.answer(path.removeprefix(VIEW))
        return NOTHING

    def _facts(self) -> PageAnswer:
        try:
            facts = gather(self._run, now=self._now()).as_json()
        except (ValueError, OSError) as error:
            told = json.dumps({"error": str(error)}).encode()
            return PageAnswer(body=told, kind=JSON, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        return PageAnswer(body=json.dumps(facts, allow_nan=False).encode(), kind=JSON)
