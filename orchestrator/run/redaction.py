"""Secrets never leave the process: they are blanked by the name of their key and by their shape.

What a run writes of its configuration (`config.yaml`, `manifest.json`, the report, the tracker's parameters, messages)
goes through here. A secret lets a run in somewhere and is no part of what the run is, so it is not compared either when a
run is continued: a token may be renewed.
"""

import os
import re
from collections.abc import Callable
from typing import Any

BLANK = "[blanked]"
SECRET_KEY = re.compile(
    r"(?:^|_)(?:auth|authorization|bearer|cookies?|credentials?|jwt|passphrase|passwd|password|pwd|secrets?|apikey"
    r"|token"
    r"|(?:access|account|anthropic|api|aws|azure|encryption|gcp|google|hf|hub|master|mlflow|openai|private|shared|signing"
    r"|ssh|subscription|wandb)_key)(?:_|$)"
)
"""The words of a key that names a secret, wherever they stand in it. `tokens` counts tokens."""
TEXT_TOKEN = re.compile(
    r"(?<![a-z])(?:(?:begin|bos|cls|end|eos|mask|pad|per|sep|start|stop|unk)_token|token_(?:ids?|range))(?![a-z])"
)
"""The words of a key that speaks of tokens of text instead: of one with a place in the vocabulary, of its number there, or of a
range in which what belongs to it may lie."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
REFERENCE = r"\$\{oc\.env:\w+\}['\"]?(?:[\s&;,]|\Z)"
"""What says where a secret is, and is none: the name of an environment variable."""
SHAPES = (
    (re.compile(r"(?<=://)[^/\s]+@"), f"{BLANK}@"),  # user and password of a URI
    (
        re.compile(rf"(?i)((?:token|password|passwd|pwd|secret|api[_-]?key|signature)=)(?!{REFERENCE})[^\s&;,]+"),
        rf"\1{BLANK}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=\S*[\d=])[\w.~+/=-]{8,}"), rf"\1 {BLANK}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), BLANK),  # a JSON web token
    (re.compile(r"\b(?:hf|gh[oprsu]|github_pat|glpat|xox[abeprs]|nvapi)[_-][\w-]{16,}"), BLANK),
    (re.compile(r"\bsk-[\w-]{16,}"), BLANK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), BLANK),
    (re.compile(r"\bAIza[\w-]{35}"), BLANK),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), BLANK),
)


def is_secret(key: str) -> bool:
    """Return whether a key names a secret, such as `hf_token`, `apiKey` or `auth`."""
    return SECRET_KEY.search(TEXT_TOKEN.sub("", "_".join(WORD.findall(key)).lower())) is not None


def blanked(text: str) -> str:
    for shape, instead in SHAPES:
        text = shape.sub(instead, text)
    return text


def redacted(value: Any, *, hidden: Callable[[Any], str] = lambda value: BLANK) -> Any:
    """Return JSON data without its secrets: under a secret key all that is neither null, true, false nor "" is `hidden`."""
    return _walked(value, hidden, secret=False)


def _walked(value: Any, hidden: Callable[[Any], str], *, secret: bool) -> Any:
    if isinstance(value, dict):
        return {key: _walked(inner, hidden, secret=secret or is_secret(str(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(inner, hidden, secret=secret) for inner in value]
    if secret and not (value is None or isinstance(value, bool) or value == ""):
        return hidden(value)
    return blanked(value) if isinstance(value, str) else value


def reference(value: Any) -> str:
    """Return what a file holds in place of a secret: the environment variable with it, if one has it.

    The variable's name must be that of a secret too: others may have the same value by chance.
    """
    names = (name for name, content in os.environ.items() if content == value and is_secret(name))
    name = next(names, None)
    return BLANK if name is None else f"${{oc.env:{name}}}"


def blanks(value: Any, where: str = "") -> list[str]:
    if isinstance(value, dict):
        return [
            key for name, inner in value.items() for key in blanks(inner, f"{where}.{name}" if where else str(name))
        ]
    if isinstance(value, list | tuple):
        return [key for number, inner in enumerate(value) for key in blanks(inner, f"{where}[{number}]")]
    return [where] if isinstance(value, str) and BLANK in value else []
