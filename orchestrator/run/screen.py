"""Text for people on a terminal: lines break at spaces only, and paths are relative to the current folder if that is shorter.

Text for anything but a terminal stays as it is, so that programs read whole lines and whole paths.
"""

import os
import re
from textwrap import TextWrapper

from rich.console import Console
from rich.style import Style
from rich.text import Text

ABSOLUTE = re.compile(r"(?<![^\s'\"`(=])/[^\s'\"`(),;:]+")
HEAD = re.compile(r"\s*(?:\S+\s{2,})*")
"""The indentation of a line, and its first columns, which have two spaces between them."""
INDENT = 2


def print_text(console: Console, text: str, *, mark: tuple[int, str | Style] = (0, "")) -> None:
    """Print a text as it is, fitted to a terminal. `mark` is a number of first characters, and their style."""
    shown = Text(fit_text(text, console.width) if console.is_terminal else text)
    shown.stylize(mark[1], 0, mark[0])
    console.print(shown, soft_wrap=True)


def fit_text(text: str, width: int) -> str:
    """Return a text for a terminal of this width. A longer word stays whole."""
    return "\n".join(wrap_line(ABSOLUTE.sub(_shorter, line), width) for line in text.split("\n"))


def wrap_line(line: str, width: int) -> str:
    """Break a line at spaces. The further lines are indented to its columns, or by `INDENT` spaces."""
    if len(line) <= width:
        return line
    head = len(re.match(HEAD, line)[0])  # type: ignore[index]
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
    return min(path, os.path.relpath(path, here), key=len)
