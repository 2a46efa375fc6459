"""Redaction of secrets by the name of their key and by their form.

All output with configuration goes through here: `config.yaml`, `manifest.json`, the report, the tracker's parameters,
messages. A resumed run may have other secrets, so they are not compared.
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
"""Words of a key that names a secret. `tokens` counts tokens."""
TEXT_TOKEN = re.compile(
    r"(?<![a-z])(?:(?:begin|bos|cls|end|eos|mask|pad|per|sep|start|stop|unk)_token"
    r"|token_(?:budgets?|counts?|ids?|level|limits?|loss|range))(?![a-z])"
)
"""Words of a key that concerns tokens of text, such as `token_ids` or `token_level_loss`."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
REFERENCE = r"\$\{oc\.env:\w+\}['\"]?(?:[\s&;,]|\Z)"
"""Reference to an environment variable, which is no secret."""
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


def blank_text(text: str) -> str:
    for shape, instead in SHAPES:
        text = shape.sub(instead, text)
    return text


def redact(value: Any, *, hidden: Callable[[Any], str] = lambda value: BLANK) -> Any:
    """Return JSON data without secrets. `hidden` replaces each value under a secret key, except null, booleans and ""."""
    return _walked(value, hidden, secret=False)


def _walked(value: Any, hidden: Callable[[Any], str], *, secret: bool) -> Any:
    if isinstance(value, dict):
        return {key: _walked(inner, hidden, secret=secret or is_secret(str(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(inner, hidden, secret=secret) for inner in value]
    if secret and not (value is None or isinstance(value, bool) or value == ""):
        return hidden(value)
    return blank_text(value) if isinstance(value, str) else value


def reference(value: Any) -> str:
    """Return the text that replaces a secret in a file: a reference to the environment variable with its value, if any.

    The variable's name must name a secret too, since others may have the same value by chance.
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
