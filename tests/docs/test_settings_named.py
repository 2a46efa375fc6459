"""The settings that messages, docstrings and documents name are settings that there are."""

import ast
import re
from pathlib import Path

import pytest

from temper.orchestrator.pipeline.config import KINDS

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("rewards", "envs", "rollout", "learner", "orchestrator")
SECTIONS = sorted({key.partition(".")[0] for key in KINDS if "." in key} - {"envs"})
NAMED = re.compile(rf"(?<![\w./*])({'|'.join(SECTIONS)})((?:\.[a-z][a-z0-9_]*)+)(\.?)(?![\w/(*])")
FREE = {key for key in KINDS if key.endswith(("shares", "engine.extra"))}
"""Settings whose keys the user chooses."""
NO_SETTINGS = {
    "rl.eval",
    "learner.step",
    "learner.publish",
    "sandbox.isolation",
    "model.embed_tokens.weight",
    "model.layers",
    "model.safetensors",
}
"""A name of rows of metrics, methods, a fact of the tracker, tensors of a model and its file."""
SUFFIXES = {path.suffix for path in ROOT.rglob("orchestrator/**/*.*")} | {".json", ".svg", ".jsonl", ".md"}


def is_known(name: str) -> bool:
    """Whether this is a setting, or holds some, or a module of ours."""
    file = ROOT / name.replace(".", "/")
    return (
        name in NO_SETTINGS
        or any(key == name or key.startswith(f"{name}.") for key in KINDS)
        or any(name.startswith(f"{key}.") for key in FREE)
        or Path(name).suffix in SUFFIXES
        or file.is_dir()
        or any(place.with_suffix(".py").is_file() for place in (file, file.parent))
    )


def texts(path: Path) -> list[str]:
    """The text of a document, or every string of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [text]
    return [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("place", [*LAYERS, "README.md", "CONTRIBUTING.md", "docs", "configs"])
def test_a_setting_that_is_named_is_there(place: str) -> None:
    given = ROOT / place
    files = (
        [given] if given.is_file() else [path for path in given.rglob("*") if path.suffix in (".py", ".md", ".yaml")]
    )
    found = [
        (str(path.relative_to(ROOT)), name)
        for path in files
        for text in texts(path)
        for section, rest, _ in NAMED.findall(text)
        if not is_known(name := f"{section}{rest}")
    ]
    assert found == []
