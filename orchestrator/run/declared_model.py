"""The run's first model: files of another directory with the chat template and turn tokens that the configuration declares.

The run's checkpoints keep its tokenizer files, so that engines, servers and later runs read the same.
`generation_config.json` names the end-of-turn ids for other programs.
"""

import json
import os
from pathlib import Path
from typing import Any

from temper.rollout.declared_turns import DeclaredTurns
from temper.rollout.formats.find import GENERATION, generation_text
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.own_files import MANIFEST, own_files

TEMPLATE, TOKENIZER = "chat_template.jinja", "tokenizer_config.json"


def write_declared(source: Path, directory: Path, declared: DeclaredTurns) -> None:
    """Write the model of `source` with its declared turns into an empty directory. Large files become links.

    Raise `ValueError` for an end of turn that is no token, or that the template does not write.
    """
    generation = generation_text(source, load_tokenizer(source, declared))
    for file in own_files(source, "*"):
        if file.name not in (TEMPLATE, TOKENIZER, GENERATION, MANIFEST):
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
    """Return, by its name, the file that lists the end-of-turn ids of a model. Checkpoints keep it."""
    return {GENERATION: generation_text(model, load_tokenizer(model))}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
