"""Extract the program of an answer. Text only, in linear time; nothing is parsed or executed here.

1. Fenced blocks (``` or ~~~, indented or not, the last one possibly unclosed) come first. The program is the last block
   that defines the entry point, then the last block marked as Python, then the last unmarked block, then the last block.
2. Without a block the answer itself is the program, from the first line that can begin a program to the line before the
   first prose.
3. A final `>>>` session is removed. If the task has code to complete, a program without the entry point is taken as its
   continuation and indented to match. A program with the entry point gets the imports and helpers of the task's code.
"""

import re
from dataclasses import dataclass

MAX_CHARACTERS = 65_536
MAX_LINE = 2000
PYTHON = {"python", "py", "python3", "python2", "py3", "ipython", "ipython3", "pycon"}
MARK = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+#.-"
# strings, comments and brackets: each alternative matches where it begins, so that a scan is linear
TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\Z)'
    r'|"(?:[^"\\\n]|\\.)*"?|\'(?:[^\'\\\n]|\\.)*\'?|#[^\n]*|[()\[\]{}]|\n',
    re.DOTALL,
)
STATEMENT = re.compile(
    r"@\w|#|[\"')\]}]|[rbfuRBFU]{1,2}[\"']"
    r"|(?:async +)?(?:def|class) +\w+ *[(:\[]|import +[\w.]+(?: *$| *,| +as\b)|from +[\w.]+ +import\b"
    r"|(?:if|elif|while|with|for|match|except)\b.*[:\\(\[{,](?: *#.*)?$|(?:try|else|finally) *:"
    r"|(?:if|while|for|with)\b[^:]*: *(?:(?:pass|break|continue|return|raise|yield)\b|\w+ *(?:[.(\[]|[-+*/]?=))"
    r"|(?:return|yield|raise|assert|del|global|nonlocal|await)\b|(?:pass|break|continue) *(?:#.*)?$"
    r"|[A-Za-z_][\w.]*[(\[].*[)\]},(\[{\\:;](?: *#.*)?$|[A-Za-z_][\w.]*[(\[]$"
)
TARGET = re.compile(r"[*(\[A-Za-z_][^#]*[-+*/%|&^@<>]{0,3}")
DEFINITION = re.compile(
    r"^(?:async[ \t]+)?(?:def[ \t]+(\w+)[ \t]*[\[(]|class[ \t]+(\w+)[ \t]*[:(\[]|(\w+)[ \t]*(?:=(?!=)|:))", re.MULTILINE
)
TWO_WORDS = re.compile(r"\w[ \t]+\w")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its mark in lower case, its text, and whether it is closed."""

    mark: str
    text: str
    closed: bool = True


def program_of(answer: str, *, entry_point: str | None = None, prompt: str = "") -> str | None:
    """Return the whole program of an answer, or None if it is empty or longer than 65,536 characters.

    `entry_point` is the required name, or None for a program that reads standard input. `prompt` is the code to complete,
    or empty.
    """
    answer = answer.replace("\r\n", "\n")
    fenced = blocks(answer)
    source = _without_session(_chosen(fenced, entry_point) if fenced else _bare(answer)).rstrip()
    if not source.strip() or len(source) > MAX_CHARACTERS:
        return None
    if not prompt or entry_point is None:
        return source
    if has_definition(source, entry_point):
        return join_code(preamble(prompt, entry_point), source)
    return complete_body(prompt, source)


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a text.

    A block ends at a line that is or ends with its fence, indented by at most 3 more columns, at an opening fence with a
    mark, or at the end of the text. Lines lose the indentation of the opening fence.
    """
    found: list[Block] = []
    fence, mark, indent, lines = "", "", 0, list[str]()
    for line in text.split("\n"):
        bare, depth = line.strip(), len(line) - len(line.lstrip())
        opening = _opening(line, alone=bool(fence))
        if not fence:
            if opening:
                (fence, mark, indent), lines = opening, []
            continue
        near = depth <= indent + 3
        if near and len(bare) >= len(fence) and not bare.strip(fence[0]):
            found.append(Block(mark, "\n".join(lines)))
            fence = ""
        elif near and opening and opening[1]:
            found.append(Block(mark, "\n".join(lines)))
            (fence, mark, indent), lines = opening, []
        elif fence[0] == "`" and bare.endswith(fence) and not bare.startswith(("#", '"', "'", "`")):
            found.append(Block(mark, "\n".join([*lines, _outdented(line.rstrip().rstrip("`"), indent)])))
            fence = ""
        else:
            lines.append(_outdented(line, indent))
    if fence:
        found.append(Block(mark, "\n".join(lines), closed=False))
    return found


def _opening(line: str, *, alone: bool) -> tuple[str, str, int] | None:
    """Return the fence, mark and indentation of a line that opens a block, or None.

    The fence comes first and its mark and attributes follow. Unless it must be `alone`, it may also come last, after other
    text.
    """
    bare = line.strip()
    if bare[:3] in ("```", "~~~"):
        rest = bare.lstrip(bare[0])
        words = rest.replace("{", " ").replace("}", " ").replace(".", "").split(None, 1)
        mark = words[0].lower() if words else ""
        return None if "`" in rest else (bare[: len(bare) - len(rest)], mark, len(line) - len(line.lstrip()))
    before = bare.rstrip(MARK)
    fence = before.rstrip()[-3:]
    if alone or fence not in ("```", "~~~") or fence[0] in before.rstrip().rstrip(fence[0]):
        return None
    return fence, bare[len(before) :].lower(), 0


def has_definition(source: str, name: str) -> bool:
    """Return whether a line of the source defines or assigns `name` at the top level."""
    return any(name in line.groups() for line in DEFINITION.finditer(source))


def preamble(prompt: str, entry_point: str) -> str:
    """Return the imports and helpers of a prompt before the entry point."""
    match = re.search(rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(entry_point)}\b", prompt, re.MULTILINE)
    return prompt[: match.start()] if match else ""


def join_code(before: str, source: str) -> str:
    """Join two pieces of code into one program. Imports from `__future__` must come first."""
    if not before.strip():
        return source
    lines = source.split("\n")
    future = [line for line in lines if line.startswith("from __future__ ")]
    rest = "\n".join(line for line in lines if line not in future) if future else source
    return "".join(f"{line}\n" for line in future) + f"{before.rstrip()}\n\n\n{rest}"


def complete_body(prompt: str, body: str) -> str:
    """Join code and the body of its last function, at the indentation of that function."""
    return f"{prompt.rstrip()}\n{_body(body, _levels(prompt))}"


def _chosen(fenced: list[Block], entry_point: str | None) -> str:
    filled = [block for block in fenced if block.text.strip()]
    defining = [block for block in filled if entry_point is not None and has_definition(block.text, entry_point)]
    python = [block for block in filled if block.mark in PYTHON]
    unmarked = [block for block in filled if not block.mark]
    return next((choice[-1].text for choice in (defining, python, unmarked, filled) if choice), "")


def _bare(answer: str) -> str:
    """Return the part of an answer without blocks that can be a program, or empty if it is all prose."""
    lines = answer.split("\n")
    top = _top_level(answer, len(lines))
    start = 0
    for number, line in enumerate(lines):
        if line.strip() and (line[0] in " \t" or _is_code(line)):
            start = number
            break
    else:
        return ""
    if start:  # an apostrophe of the prose must not open a string of the program
        top[start:] = _top_level("\n".join(lines[start:]), len(lines) - start)
    for number in range(start, len(lines)):
        line = lines[number]
        if top[number] and line.strip() and line[0] not in " \t" and not _is_code(line):
            return "\n".join(lines[start:number])
    return "\n".join(lines[start:])


def _is_code(line: str) -> bool:
    head, equals, tail = line.partition("=")
    assigns = equals and not tail.startswith("=") and TARGET.fullmatch(head.rstrip()) and not TWO_WORDS.search(head)
    return len(line) > MAX_LINE or bool(assigns) or STATEMENT.match(line) is not None


def _top_level(text: str, count: int) -> list[bool]:
    """Return for each line whether it begins outside strings and brackets."""
    top, line, depth = [True] * (count + 1), 0, 0
    for match in TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
            top[min(line, count)] = depth == 0
        elif token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth = max(depth - 1, 0)
        else:
            for _ in range(token.count("\n")):
                line += 1
                top[min(line, count)] = False
    return top


def _without_session(source: str) -> str:
    """Return the source up to a `>>>` session at its top level, if code precedes it."""
    lines = source.split("\n")
    top = _top_level(source, len(lines))
    for number, line in enumerate(lines):
        if top[number] and line.startswith(">>>"):
            before = "\n".join(lines[:number])
            return before if before.strip() else source
    return source


def _body(source: str, levels: list[str]) -> str:
    """Return a completion at the indentation of a function's body. `levels` are the indentations so far.

    Lines up to the next one at the margin move together, and multi-line strings stay. If all lines are at the margin, all
    move. If only the first line lost its indentation, it alone is restored.
    """
    lines = source.split("\n")
    code = _code_lines(source)
    if not code:
        return source
    first, level = lines[code[0]], levels[0] if levels else "    "
    after = _indentation(lines[code[1]]) if len(code) > 1 else ""
    if not _indentation(first) and after and not first.rstrip().endswith((":", "\\")):
        lines[code[0]] = first = after + first
    width = _indentation(first)
    if width and (not levels or width in levels):
        return "\n".join(lines)
    for number in code:
        if width and not _indentation(lines[number]):
            break
        if lines[number].startswith(width):
            lines[number] = level + lines[number][len(width) :]
    return "\n".join(lines)


def _levels(prompt: str) -> list[str]:
    """Return the indentations of the blocks that are open at the end of the code, the outermost first."""
    levels: list[str] = []
    lines = prompt.split("\n")
    for number in _code_lines(prompt):
        width = _indentation(lines[number])
        levels = [level for level in levels if len(level) < len(width)] + [width] * bool(width)
    return levels


def _code_lines(source: str) -> list[int]:
    lines = source.split("\n")
    top = _top_level(source, len(lines))
    return [n for n, line in enumerate(lines) if top[n] and line.strip() and not line.lstrip().startswith("#")]


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _outdented(line: str, indent: int) -> str:
    """Return a line without the columns of its fence, as far as they are blank."""
    return line[min(indent, len(line) - len(line.lstrip())) :]
