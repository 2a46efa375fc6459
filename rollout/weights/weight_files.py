"""Checks that a model directory has all its weights, by the headers of its files."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from temper.rollout.weights.own_files import own_files

INDEX = "model.safetensors.index.json"
HEAD = struct.Struct("<Q")
"""A safetensors file begins with the length of its header, which lists the tensors' offsets."""


def require_complete(directory: Path) -> int:
    """Return the number of parameters in a model directory.

    Raises `FileNotFoundError` or `ValueError`, with the file, if the directory is no model, or a file is missing or
    incomplete.
    """
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} is not a model directory: it has no config.json")
    index = directory / INDEX
    listed = _json(index.read_bytes(), index)["weight_map"] if index.is_file() else {}
    names = sorted(set(listed.values())) or [path.name for path in own_files(directory, "*.safetensors")]
    missing = [name for name in names if not (directory / name).is_file()]
    if missing or not names:
        of = f"{len(missing)} of its {len(names)} weight files: {', '.join(missing)}" if missing else "*.safetensors"
        raise FileNotFoundError(f"{directory} lacks {of}; download it again")
    heads = {name: _head(directory / name) for name in names}
    lost = [tensor for tensor, name in listed.items() if tensor not in heads[name]]
    if lost:
        raise ValueError(f"{directory / listed[lost[0]]} lacks {lost[0]}, which {INDEX} lists; download it again")
    return sum(math.prod(tensor["shape"]) for head in heads.values() for tensor in head.values())


def tensor_names(directory: Path) -> list[str]:
    """Return the names of the tensors in a model directory. Raises `ValueError` for a damaged file."""
    index = directory / INDEX
    if index.is_file():
        return list(_json(index.read_bytes(), index)["weight_map"])
    return [name for path in own_files(directory, "*.safetensors") for name in _head(path)]


def _head(path: Path) -> dict[str, Any]:
    """Return a file's header. Raises `ValueError` if the file's size does not match it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEAD.size)
        length = HEAD.unpack(start)[0] if len(start) == HEAD.size else size
        if HEAD.size + length > size:
            raise ValueError(f"{path} is an incomplete safetensors file of {size} bytes; download it again")
        head = _json(file.read(length), path)
    tensors = {name: tensor for name, tensor in head.items() if name != "__metadata__"}
    needed = HEAD.size + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    if size != needed:
        raise ValueError(f"{path} has {size} bytes instead of {needed}; download it again")
    return tensors


def _json(text: bytes, path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); download it again") from error
    return found
