"""Each row that docs/data.md shows is of the format, and of the environments, beside which it stands."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from docs.test_documents import text

from temper.envs.catalog import ENVIRONMENTS, configured
from temper.envs.core.row_format import RowFormat, load_row

LINE = re.compile(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \| .+ \| `(\{.+\})` \|$", re.MULTILINE)
SHOWN = [(name, re.findall(r"\w+", envs), json.loads(row)) for name, envs, row in LINE.findall(text("docs/data.md"))]
BESIDE = {"tau", "bfcl_v4", "bfcl_v4_multi_turn"}
"""Formats that read files beside their rows, so that no row alone shows them."""


def formats_of(env: str, folder: Path) -> Sequence[RowFormat]:
    if env == "search":
        (folder / "corpus.jsonl").write_text('{"id": "1", "contents": "Ann did it."}\n', encoding="utf-8")
        return configured(env, {"corpus": str(folder / "corpus.jsonl")}).formats
    if env == "http":
        return configured(env, {"url": "http://127.0.0.1:1", "protocol": "verify"}).formats
    return ENVIRONMENTS[env].formats


@pytest.mark.parametrize(("name", "envs", "row"), SHOWN, ids=[name for name, _, _ in SHOWN])
def test_a_row_that_is_shown_is_of_its_format(
    name: str, envs: list[str], row: dict[str, object], tmp_path: Path
) -> None:
    for env in envs:
        formats = formats_of(env, tmp_path)
        assert next(known.name for known in formats if known.matches(row)) == name
        assert load_row(formats, row).messages


def test_every_format_is_shown_for_every_environment_that_knows_it(tmp_path: Path) -> None:
    known = {(one.name, env) for env in ENVIRONMENTS for one in formats_of(env, tmp_path) if one.name not in BESIDE}
    assert known == {(name, env) for name, envs, _ in SHOWN for env in envs}
    assert set(re.findall(r"`(\w+)`", text("docs/data.md"))) >= BESIDE
