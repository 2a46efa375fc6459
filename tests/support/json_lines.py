"""Files of JSON lines, as users have their data."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_lines(path: Path, given: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    return path
