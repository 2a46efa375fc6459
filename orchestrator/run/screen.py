"""Text for people on a terminal: lines break at spaces only, and paths are relative to the current folder if that is shorter.

Text for anything but a terminal stays as it is, so that programs read whole lines and whole paths.
"""

import os
import re
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

ABSOLUTE = re.compile(r"(?<![^\s'\"`(=])/[^\s'\"`(),;:]+")
COLUMNS = re.compile(r"\s*(?:\S+\s{2,})+")
"""The first columns of a line. They have no spaces, and two or more behind each."""
INDENT = 2


def print_text(console: Console, text: str, *, mark: tuple[int, str] = (0, ""), indent: int = 0) -> None:
    """Print a text, fitted to a terminal as by `fit_text`. `mark` is a number of first characters, and their style."""
    shown = Text(fit_text(text, console.width, indent=indent) if console.is_terminal else text)
    shown.stylize(mark[1], 0, mark[0])
    console.print(shown, soft_wrap=True)


def fit_text(text: str, width: int, *, indent: int = 0) -> str:
    """Return a text for a terminal of this width. A longer word stays whole.

    The further lines of a broken line have `indent` spaces, by default up to its last column or two more than its first line.
    """
    return "\n".join(_wrap(ABSOLUTE.sub(_shorter, line), width, indent) for line in text.split("\n"))


def _wrap(line: str, width: int, indent: int) -> str:
    if len(line) <= width:
        return line
    found = COLUMNS.match(line)
    head = indent or (found.end() if found else 0)
    hang = head if 0 < head <= width // 2 else len(line) - len(line.lstrip()) + INDENT
    wrapper = TextWrapper(
        width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False, expand_tabs=False
    )
    return wrapper.fill(line)


def _shorter(found: re.Match[str]) -> str:
    """Return an absolute path, or the path from the current folder if it is shorter."""
    path, here = found[0], os.getcwd()
    if here == os.sep:  # names of addresses, such as /v1/messages, look like paths
        return path
    relative = os.path.relpath(path, here)
    return relative if len(relative) < len(path) and relative.strip("./") else path
