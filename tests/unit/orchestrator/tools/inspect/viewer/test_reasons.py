"""The viewer in a real browser on graded answers: reasons, tool calls, filters, and links to a token."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.browsing import CHROMIUM, NONE_HERE, launched, one_page
from support.played_run import SLEEP_S, write_played_run

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE_HERE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_played_run(tmp_path_factory.mktemp("runs") / "played")


@pytest.fixture(scope="module")
def rows(run: RunDir) -> list[dict[str, Any]]:
    """The rows of the file, to compare the page with."""
    return [json.loads(line) for line in run.trajectory_file("rl", 10).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def page(run: RunDir) -> "Iterator[Page]":
    out = run.root / "step.html"
    assert main(["view", str(run.root), "--step", "10", "--out", str(out)]) == 0
    with launched() as browser, one_page(browser) as (page, errors):
        page.goto(out.as_uri())
        page.wait_for_selector("body[data-ready]")
        yield page
        assert errors == []


def choose(page: "Page", number: int) -> None:
    page.locator("#clear").click()
    page.locator(f".row[data-row='{number}']").click()
    page.wait_for_selector(f".card.chosen[data-row='{number}']")


@pytest.mark.parametrize("number", [0, 1])
def test_the_page_says_why_a_reward_and_its_command_earns_the_same_again(
    page: "Page", run: RunDir, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], number: int
) -> None:
    row = rows[number]
    choose(page, number)
    lines = page.locator("#answer table.facts tr")
    told = {line.locator("th").inner_text(): line.locator("td").inner_text() for line in lines.all()}
    evidence = [
        f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in row["evidence"].items()
    ]
    assert told == {
        "reward": f"{row['reward']:g}",
        **{f"part {name}": f"{value:g}" for name, value in row["parts"].items()},
        "outcome": row["outcome"],
        "verifier": row["detail"],
        "evidence": "\n".join(evidence) or "none",
    }
    assert row["reward"] == 1.0 - number
    command = page.locator("#answer .command pre").inner_text()
    program, *arguments = shlex.split(command)
    assert (program, arguments) == (
        "temper",
        ["env", "regrade", str(run.trajectory_file("rl", 10)), "--row", str(number)],
    )
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["reward"], again["detail"], again["agrees"]) == (row["reward"], row["detail"], True)


def test_each_tool_call_is_a_span_with_its_seconds(page: "Page", rows: list[dict[str, Any]]) -> None:
    choose(page, 0)
    turns = rows[0]["turns"]
    spans = turns[0]["tool_spans"]
    assert [span["name"] for span in spans] == ["python", "calculator"]
    assert spans[0]["seconds"] >= SLEEP_S
    assert page.locator("#answer .called").all_inner_texts() == ["python", "calculator"]
    for span, drawn in zip(spans, page.locator("#answer i.call").all(), strict=True):
        told = re.search(r"\): ([\d.]+) s,", drawn.get_attribute("title") or "")
        assert told is not None
        assert float(told[1]) == pytest.approx(span["seconds"], abs=1e-6)
    messages = page.locator("#answer .message").all_inner_texts()
    assert messages[0].startswith('tool python(code="import time\\ntime.sleep')
    assert messages[0].endswith("slept\n")
    assert re.fullmatch(r"tool calculator\(expression=\".+\"\)\s+-?\d+", messages[1]), messages[1]


def gaps_of(row: dict[str, Any]) -> list[float]:
    """Return the absolute logprob difference of trainer and engine on each sampled token."""
    theirs = [value for turn in row["turns"] for value in turn["logprobs"]]
    return [abs(mine - other) for mine, other in zip(row["training"]["logprobs"], theirs, strict=True)]


def test_the_colours_of_numbers_are_those_of_each_token(page: "Page", rows: list[dict[str, Any]]) -> None:
    """Mismatch, surprisal and advantage: the colour strength of every sampled token follows from the recorded values."""
    for number, tint in ((0, "plus"), (1, "minus")):
        choose(page, number)
        row = rows[number]
        logprobs = [value for turn in row["turns"] for value in turn["logprobs"]]
        advantage = row["training"]["advantage"]
        of_group = sorted(gap for one in rows if one["ticket"] == row["ticket"] for gap in gaps_of(one))
        widest = of_group[int(0.99 * len(of_group))]  # one difference of a hundred is wider
        full = {
            "mismatch": ("low", [gap / widest for gap in gaps_of(row)]),  # the trainer's values are lower throughout
            "surprisal": ("warm", [-value / 4.0 for value in logprobs]),
            "advantage": (tint, [abs(advantage) / 0.5] * len(logprobs)),  # of the group's largest
        }
        for place, (name, (colour, shares)) in enumerate(full.items(), 1):
            if number:
                page.keyboard.press(str(place))
            else:
                page.locator(f"[data-colour='{name}']").click()
            assert page.locator(f"[data-colour='{name}']").get_attribute("aria-checked") == "true"
            base = page.evaluate(
                "name => getComputedStyle(document.documentElement).getPropertyValue(name)", f"--{colour}"
            )
            painted = page.locator("#tokens span[data-token]:not(.context)").evaluate_all(
                "spans => spans.map(span => getComputedStyle(span).backgroundColor)"
            )
            assert len(painted) == len(shares)
            for seen, share in zip(painted, shares, strict=True):
                parts = [float(value) for value in re.findall(r"[\d.]+", seen)]
                assert parts[3:] == pytest.approx([0.75 * min(1.0, share) if share > 0.03 else 0.0], abs=0.01), (
                    name,
                    seen,
                )
                assert share <= 0.03 or parts[:3] == [float(value) for value in base.split()]
