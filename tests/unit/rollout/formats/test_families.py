"""Reference turns earn 1 through each family's chat template, or the family is refused, as `docs/models.md` lists."""

import pytest
from support.family_findings import HEAD, NAMES, PAGE, RETAIL, find, shop_reference
from support.model_families import tokenizer_of

from temper.rollout.episodes.renderer import Renderer

TABLE = PAGE.read_text(encoding="utf-8").partition(f"| {' | '.join(HEAD)} |")
LINES = {
    line.split(" | ")[0].removeprefix("| "): line for line in (TABLE[1] + TABLE[2].partition("\n\n")[0]).splitlines()
}


@pytest.mark.parametrize("name", NAMES)
def test_a_family_does_what_the_table_of_models_says(name: str) -> None:
    assert find(name).line == LINES.get(name), (
        "write the table anew: PYTHONPATH=tests .venv/bin/python tests/support/family_findings.py"
    )


def test_the_table_of_models_has_these_families_alone() -> None:
    assert [*LINES] == [HEAD[0], "---", *NAMES]


@pytest.mark.skipif(not RETAIL.is_dir(), reason="the real task data (../shared/data) is not on this machine")
def test_the_shops_row_has_several_calls() -> None:
    assert sum("tool_calls" in message for message in shop_reference()) >= 3


def test_a_message_with_an_empty_list_of_calls_has_none() -> None:
    renderer = Renderer(tokenizer_of("llama3_1"))
    assert renderer.answer_text({"role": "assistant", "content": "17", "tool_calls": []}, thinks=True) == "17<|eot_id|>"
