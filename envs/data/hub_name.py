"""What a name on the hub looks like, told without its library."""

import re
from pathlib import Path

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Owner and name."""


def names_hub(path: str, files: tuple[str, ...] = ()) -> bool:
    """Return whether a path is a name on the hub: it looks like one, has no ending of `files`, and its first part is no folder
    here, in which it would be looked for.
    """
    if not HUB_NAME.fullmatch(path) or path.lower().endswith(files):
        return False
    return not Path(path.partition("/")[0]).is_dir()


def why_no_name(path: str) -> str:
    """Return why what looks like a name on the hub is none, to be said behind that nothing lies there; else nothing."""
    owner = path.partition("/")[0]
    if not HUB_NAME.fullmatch(path) or not Path(owner).is_dir():
        return ""
    return (
        f" ({owner} is a folder here, so that this is no name on the hub; what is there comes into it with hf download)"
    )
