"""A model as a run declares it: the files of another directory, and its own words of how the model writes its turns.

The run's checkpoints begin from it and keep its tokenizer's files, so that engines, servers and later runs read the same; its
`generation_config.json` names the ids that end a turn, so that other programs which generate with them stop there too.
"""

import json
import os
from pathlib import Path
from typing import Any

from temper.rollout.formats.find import GENERATION, generation_text
from temper.rollout.tokenizer import DeclaredTurns, load_tokenizer

TEMPLATE, TOKENIZER = "chat_template.jinja", "tokenizer_config.json"


def write_declared(source: Path, directory: Path, declared: DeclaredTurns) -> None:
    """Write the model of `source` into an empty directory, with its declared turns; large files are linked.

    Raise `ValueError` for an end of a turn that is no token, or that the template does not write.
    """
    generation = generation_text(source, load_tokenizer(source, declared))
    for file in sorted(path for path in source.iterdir() if path.is_file()):
        if file.name not in (TEMPLATE, TOKENIZER, GENERATION):
            os.symlink(file.resolve(), directory / file.name)
    template = declared.chat_template or _text(source / TEMPLATE)
    tokenizer = _json(source / TOKENIZER) | declared.config()
    if declared.chat_template:
        tokenizer.pop("chat_template", None)
    if template:
        (directory / TEMPLATE).write_text(template, encoding="utf-8")
    (directory / TOKENIZER).write_text(json.dumps(tokenizer, indent=1), encoding="utf-8")
    (directory / GENERATION).write_text(generation, encoding="utf-8")


def generation_file(model: Path) -> dict[str, str]:
    """Return by its name the file that names the ids by which a model's turns end, to be kept with its checkpoints."""
    return {GENERATION: generation_text(model, load_tokenizer(model))}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
