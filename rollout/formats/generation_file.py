"""`generation_config.json`: by what ids a model's turns end, for engines and libraries that read nothing else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GENERATION = "generation_config.json"


def generation_text(model: Path, end_ids: Sequence[int]) -> str:
    """Return the file of a model directory, all else as it is there, with the ids that end a turn.

    Raises `ValueError` where the file that is there can't be read.
    """
    path = model / GENERATION
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object")
    return json.dumps({**found, "eos_token_id": list(end_ids)}, indent=1)
