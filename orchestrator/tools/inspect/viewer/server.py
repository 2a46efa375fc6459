"""The server of the viewer: the page of one run, and its columns as they are asked for."""

import contextlib
import json
import threading
from collections import OrderedDict
from http import HTTPStatus

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.archive import Archive, packed
from temper.orchestrator.tools.inspect.viewer.loopback import HTML, JSON, NOTHING, LoopbackServer, PageAnswer
from temper.orchestrator.tools.inspect.viewer.page import document
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, recorded_files
from temper.orchestrator.tools.inspect.viewer.run_facts import facts_of, tokenizer_of_run
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes

UNREADABLE = (LookupError, ValueError, TypeError, OSError)
"""What is raised where a file is not there, or does not hold what a run writes."""
HELD = 4
"""Files whose columns are held at once."""


class ChangedFileError(Exception):
    """A file is no longer the one that is asked for."""


class Shelf:
    """The columns of a run's files, read again where a file has changed. May be asked from several threads."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._tokenizer: TokenBytes | None = None
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], Archive] = OrderedDict()

    def archive(self, name: str) -> Archive:
        """Return the columns of a file of the run. Raise `KeyError` where there is none of this name."""
        file = self._file(name)
        key = (name, file.mark())
        with self._lock:
            if key not in self._held:
                self._tokenizer = self._tokenizer or tokenizer_of_run(self.run)  # a run that begins has none yet
                self._held[key] = Archive(file, self._tokenizer, mark=key[1])
            self._held.move_to_end(key)
            while len(self._held) > HELD:
                self._held.popitem(last=False)
            return self._held[key]

    def read_ahead(self) -> None:
        """Read the file that a page opens with, while the browser starts."""
        files = recorded_files(self.run)
        first = next((one for one in files if one.kind == "step"), next(iter(files), None))
        if first is not None:
            threading.Thread(target=self._read, args=(first.name,), daemon=True).start()

    def _read(self, name: str) -> None:
        with contextlib.suppress(*UNREADABLE):  # the page asks again, and says what is wrong
            self.archive(name)

    def part(self, path: str) -> bytes:
        """Return what lies at NAME/table, or of the file of its mark at NAME/MARK/NUMBER; at NAME/MARK/same nothing of it.

        Raise `KeyError`, `IndexError` or `ValueError` where nothing does, `ChangedFileError` where the file has another mark.
        """
        name, *rest = path.split("/")
        if rest == ["table"]:
            return self.archive(name).table
        mark, which = rest
        self._check(name, mark)
        if which == "same":
            return packed({})
        try:
            return self.archive(name).piece(int(which))
        finally:  # it may have been written again meanwhile
            self._check(name, mark)

    def _file(self, name: str) -> RecordedFile:
        return {one.name: one for one in recorded_files(self.run)}[name]

    def _check(self, name: str, mark: str) -> None:
        if self._file(name).mark() != mark:
            raise ChangedFileError(f"{name} was written again")

    def answer(self, path: str) -> PageAnswer:
        """Return the page at "/", and columns below "/data/"."""
        if path == "/":
            return PageAnswer(body=document(facts_of(self.run)).encode(), kind=HTML)
        if not path.startswith("/data/"):
            return NOTHING
        asked = path.removeprefix("/data/")
        try:
            return PageAnswer(body=self.part(asked), kind="application/gzip")
        except ChangedFileError as error:
            told = json.dumps({"error": str(error)}).encode()
            return PageAnswer(body=told, kind=JSON, status=HTTPStatus.CONFLICT)
        except UNREADABLE as error:
            what = "the run has no such answers" if isinstance(error, LookupError) else error
            told = json.dumps({"error": f"{asked}: {what}"}).encode()
            return PageAnswer(body=told, kind=JSON, status=HTTPStatus.NOT_FOUND)


class ViewServer(LoopbackServer):
    """Serves the page of one run, at `address`."""

    def __init__(self, run: RunDir, *, port: int = 0) -> None:
        """Listen on a port of loopback, with 0 one that is free. Raise `OSError` where it is taken."""
        self.shelf = Shelf(run)
        super().__init__(self.shelf.answer, port=port)
