"""`generation_config.json`: by what ids a model's turns end, for engines and libraries that read nothing else."""

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.rollout.formats.find import find_format

GENERATION = "generation_config.json"


def generation_text(model: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the file of a model directory, all else as it is there, with the ids that end a turn in front of those there.

    Ends that are declared of the model stand alone.

    Raises `ValueError` where the file that is there can't be read.
    """
    path = model / GENERATION
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object")
    known = [] if tokenizer.init_kwargs.get("end_of_turn") else found.get("eos_token_id") or []
    ends = [*find_format(tokenizer).end_ids, *(known if isinstance(known, list) else [known])]
    return json.dumps({**found, "eos_token_id": list(dict.fromkeys(ends))}, indent=1)
