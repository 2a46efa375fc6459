"""The server of the viewer: the page of one run, and its columns on request."""

import contextlib
import json
import threading
from collections import OrderedDict
from http import HTTPStatus

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.archive import Archive, compress_json
from temper.orchestrator.tools.inspect.viewer.loopback import HTML, JSON, NOTHING, LoopbackServer, PageAnswer
from temper.orchestrator.tools.inspect.viewer.page import render_page, run_facts
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, find_file, recorded_files
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes, tokenizer_of_run

UNREADABLE = (LookupError, ValueError, TypeError, OSError)
"""Errors of a file that is missing, or that no run has written."""
HELD = 4
"""Files whose columns are held at once."""


class ChangedFileError(Exception):
    """A file has changed since the page read its table."""


class ArchiveCache:
    """The columns of a run's files, read again after a change. Thread-safe."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._tokenizer: TokenBytes | None = None
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], Archive] = OrderedDict()

    def archive(self, name: str) -> Archive:
        """Return the columns of a file of the run. Raise `KeyError` if it does not exist."""
        file = self._file(name)
        key = (name, file.mark())
        with self._lock:
            if key not in self._held:
                self._tokenizer = self._tokenizer or tokenizer_of_run(self.run)  # a new run has none yet
                self._held[key] = Archive(file, self._tokenizer, mark=key[1])
            self._held.move_to_end(key)
            while len(self._held) > HELD:
                self._held.popitem(last=False)
            return self._held[key]

    def read_ahead(self) -> None:
        """Read the file that a page opens with, while the browser starts."""

        def read() -> None:
            with contextlib.suppress(*UNREADABLE):  # the page asks again, and shows the error
                self.archive(find_file(self.run).name)

        threading.Thread(target=read, daemon=True).start()

    def part(self, path: str) -> bytes:
        """Return the table at NAME/table, a piece at NAME/MARK/NUMBER, and nothing at NAME/MARK/same.

        Raise `KeyError`, `IndexError` or `ValueError` for any other path, `ChangedFileError` if the file has another mark.
        """
        name, *rest = path.split("/")
        if rest == ["table"]:
            return self.archive(name).table
        mark, which = rest
        self._check(name, mark)
        if which == "same":
            return compress_json({})
        try:
            return self.archive(name).piece(int(which))
        finally:  # the run may have rewritten it
            self._check(name, mark)

    def _file(self, name: str) -> RecordedFile:
        return {one.name: one for one in recorded_files(self.run)}[name]

    def _check(self, name: str, mark: str) -> None:
        if self._file(name).mark() != mark:
            raise ChangedFileError(f"{name} was written again")

    def answer(self, path: str) -> PageAnswer:
        """Return the page at "/", and columns below "/data/"."""
        if path == "/":
            return PageAnswer(body=render_page(run_facts(self.run)).encode(), kind=HTML)
        if not path.startswith("/data/"):
            return NOTHING
        asked = path.removeprefix("/data/")
        try:
            return PageAnswer(body=self.part(asked), kind="application/gzip")
        except ChangedFileError as error:
            return _error(str(error), HTTPStatus.CONFLICT)
        except UNREADABLE as error:
            what = "the run has no such file" if isinstance(error, LookupError) else error
            return _error(f"{asked}: {what}", HTTPStatus.NOT_FOUND)


def _error(text: str, status: HTTPStatus) -> PageAnswer:
    return PageAnswer(body=json.dumps({"error": text}).encode(), kind=JSON, status=status)


class ViewServer(LoopbackServer):
    """Serves the page of one run at `address`."""

    def __init__(self, run: RunDir, *, port: int = 0) -> None:
        """Listen on a port of loopback. 0 picks a free port. Raise `OSError` if it is taken."""
        self.archives = ArchiveCache(run)
        super().__init__(self.archives.answer, port=port)
