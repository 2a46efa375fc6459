"""The commit of this code."""

import subprocess
from functools import cache
from pathlib import Path

DIRTY = "-dirty"
"""The end of the commit of a changed checkout."""


@cache
def source_commit() -> str:
    """Return the short commit of the checkout that runs this code, with `DIRTY` if files differ. Empty for a package.

    The commit of the first call: the process runs that code.
    """
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], check=True, capture_output=True)
        described = [*git, "describe", "--always", f"--dirty={DIRTY}", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
