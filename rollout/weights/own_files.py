"""The files that belong to a model directory or a checkpoint. All others in its folder are foreign and never read.

A checkpoint's manifest lists its files. Systems and editors add hidden ones to any folder, such as `.nfs*`, `.DS_Store` and
`._model.safetensors`, so no hidden file belongs to a model.
"""

import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def read_manifest(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the size and SHA-256 of a checkpoint's files by path. Raises `OSError` or `ValueError` if there is no manifest."""
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="ascii"))["files"]
        return {
            name: {key: entry[key] for key in ("bytes", "sha256")} for name, entry in files.items() if _is_own(name)
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the manifest of a checkpoint: {type(error).__name__} {error}") from error


def find_files(directory: Path, pattern: str = "**/*") -> dict[str, Path]:
    """Return the files that match, by their path in the directory, in order. Hidden ones are left out."""
    found = {str(path.relative_to(directory)): path for path in sorted(directory.glob(pattern)) if path.is_file()}
    return {name: path for name, path in found.items() if _is_own(name)}


def own_files(directory: Path, pattern: str = "**/*") -> list[Path]:
    """Return the files of a checkpoint that match and that its manifest lists, or of a model directory without a manifest."""
    found = find_files(directory, pattern)
    try:
        listed = read_manifest(directory)
    except (OSError, ValueError):
        return list(found.values())
    return [path for name, path in found.items() if name in listed]


def _is_own(name: str) -> bool:
    return not any(part.startswith(".") for part in Path(name).parts)
