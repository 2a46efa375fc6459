"""The head of a batch's file: all of it that is no long array, as JSON, packed by zlib."""

import json
import zlib
from typing import Any

FORMAT = 2
"""What a change of the file that an older program could not read adds one to."""
READ = (1, FORMAT)
"""The formats that are read: in the first, expert choices were not written as bytes."""
HEAD = "head"
"""The name of its bytes among the arrays."""


def head_of(file: Any) -> dict[str, Any]:
    """Return the head of an open file of safetensors. Raise `ValueError` where it is of a format that is not read."""
    head: dict[str, Any] = json.loads(zlib.decompress(file.get_tensor(HEAD).tobytes()))
    if head["format"] not in READ:
        raise ValueError(f"it has format {head['format']}, and this version of Temper reads format {FORMAT}")
    return head
