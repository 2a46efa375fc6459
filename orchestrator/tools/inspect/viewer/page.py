"""The page: one HTML document with style and code. A page for a file also embeds all columns."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.archive import Archive
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, recorded_files

BROWSER = Path(__file__).parent / "browser"
FRAME, BODY, STYLE = BROWSER / "frame.html", BROWSER / "viewer.html", BROWSER / "viewer.css"
SCRIPTS = ("element", "theme", "columns", "tokens", "colours", "table", "histogram", "group", "answer", "place", "keys")
"""The scripts of the viewer in order. The last one starts it."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"


def run_facts(run: RunDir, files: list[RecordedFile] | None = None) -> dict[str, Any]:
    """Return the facts of a run that the page shows, as plain JSON data, with these of its files, or all."""
    listed = recorded_files(run) if files is None else files
    return {"run": run.root.resolve().name, "folder": str(run.root), "files": [file.about() for file in listed]}


def render_page(run: dict[str, Any], *, archives: Mapping[str, Archive] | None = None) -> str:
    """Return the page of a run. Without `archives`, by file name, it fetches columns from its server.

    Model text never becomes HTML: columns are base64, and the code makes text nodes of them. A Content Security Policy allows
    only the page's own code, by its hash.
    """
    parts = _parts(archives or {}).items()
    data = [f'<script type="text/plain" data-part="{escape(part)}">{text}</script>' for part, text in parts]
    script = "\n".join(['"use strict";', *((BROWSER / f"{noun}.js").read_text(encoding="utf-8") for noun in SCRIPTS)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = FRAME.read_text(encoding="utf-8")
    for name, text in (
        ("BODY", BODY.read_text(encoding="utf-8").rstrip()),
        ("POLICY", f"{POLICY}; script-src 'sha256-{digest}'"),
        ("STYLE", STYLE.read_text(encoding="utf-8")),
        ("RUN", _in_script(run | {"offline": archives is not None})),
        ("DATA", "\n".join(data)),
        ("CODE", script),
    ):
        before, mark, after = page.partition(f"<!--{name}-->")
        assert mark, f"{FRAME.name} has no place for {name}"
        page = before + text + after
    return page


def _in_script(value: Any) -> str:
    """Return plain JSON data that is safe in a script element: nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _parts(archives: Mapping[str, Archive]) -> dict[str, str]:
    """Return the table and the pieces of each file by their server paths."""
    parts = {}
    for name, archive in archives.items():
        parts[f"{name}/table"] = archive.table
        parts |= {f"{name}/{number}": archive.piece(number) for number in range(len(archive.pieces))}
    return {path: base64.b64encode(data).decode() for path, data in parts.items()}
