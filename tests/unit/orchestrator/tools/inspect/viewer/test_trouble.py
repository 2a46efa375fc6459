"""The viewer in a real browser with bad input: hostile text, damaged files, filters, a dead server, small screens."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.browsing import CHROMIUM, NONE_HERE, launched, one_page, sync_api
from support.viewed_run import group, task, training, write_viewed_run

from temper.envs.core.thinking_mode import up_to
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.server import ViewServer
from temper.rollout.trajectory import Group
from temper.rollout.trajectory_json import write_groups

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LATE_TABLE = """async () => {
  for (let tries = 0; tries < 600 && !tables.has("eval-rl"); tries++) await new Promise((go) => setTimeout(go, 50));
  return tables.has("eval-rl");
}"""
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE_HERE)
OVERRIDE = "\u202e"
"""Reverses the direction of the rest of its line."""
UNSEEN = "\u200b"
BUDGETS = 30


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with launched() as browser:
        yield browser


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_viewed_run(tmp_path / "tiny")


@pytest.fixture
def server(run: RunDir) -> Iterator[ViewServer]:
    with ViewServer(run) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page without script errors. Its requests may fail."""
    with one_page(browser) as (page, errors):
        yield page
    assert [error for error in errors if not error.startswith("Failed to load resource")] == []


def visit(page: "Page", server: ViewServer) -> None:
    page.goto(server.address)
    page.wait_for_selector("body[data-ready]")


def rewrite(run: RunDir, groups: list[Group], rows: list[dict[str, Any] | None] | None = None) -> None:
    write_groups(run.trajectory_file("rl", 10), groups, training=rows or [])


def test_what_turns_directions_turns_nothing_beside_it_and_what_is_unseen_is_named(
    page: "Page", run: RunDir, server: ViewServer
) -> None:
    rewrite(run, [group(7, task("math", "one", f"from {OVERRIDE}left"), [(f"ab{OVERRIDE}cd{UNSEEN}e", 1.0)])])
    visit(page, server)
    hidden = page.locator("#tokens .hidden")
    assert [one.get_attribute("data-codes") for one in hidden.all()] == ["U+202E", "U+202E", "U+200B"]
    assert page.locator("#tokens").text_content() == f"from {OVERRIDE}leftab{OVERRIDE}cd{UNSEEN}e"
    places = [one.bounding_box() for one in page.locator("#tokens span[data-token]:not(.context):not(.empty)").all()]
    lefts = [box["x"] for box in places if box is not None]
    assert lefts == sorted(lefts)
    assert page.locator("#group .message .hidden").get_attribute("data-codes") == "U+202E"
    assert page.locator(".row .hidden").count() == 1


def test_a_very_long_text_shows_its_beginning_and_the_rest_at_a_click(
    page: "Page", run: RunDir, server: ViewServer
) -> None:
    rewrite(run, [group(7, task("math", "one", "y" * 20_000 + "the rest"), [("1<end>", 1.0)])])
    visit(page, server)
    said = page.locator("#group .message")
    assert said.text_content() == "user  " + "y" * 20_000 + "8 more characters"
    said.locator("button").click()
    assert said.text_content() == "user  " + "y" * 20_000 + "the rest"


def test_reasons_of_a_long_answer_take_no_time_for_each_pair_of_token_and_run(
    page: "Page", run: RunDir, server: ViewServer
) -> None:
    """Every second of 150,000 tokens is masked. A linear search per token would take half a minute."""
    text = "a" * 150_000
    left_out = {"token_range": [[place, 1] for place in range(0, len(text), 2)]}
    rewrite(run, [group(7, task("math", "one", "2?"), [(text, 1.0)])], [training(len(text), left_out=left_out)])
    visit(page, server)
    page.keyboard.press("6")
    assert page.locator("#legend").inner_text() == "token_range 75,000"


def test_a_filter_takes_empty_texts_a_part_of_many_and_says_what_it_does_not_understand(
    page: "Page", run: RunDir, server: ViewServer
) -> None:
    visit(page, server)
    page.locator("#more").click()
    page.locator("[data-column='masked']").select_option("(none)")
    assert page.locator("#count").inner_text() == "2 of 5 answers, 2 groups"
    page.locator("[data-column='reward']").fill(">much")
    assert page.locator("#count").inner_text() == "2 of 5 answers, 2 groups"
    assert "not understood" in (page.locator("[data-column='reward']").get_attribute("title") or "")
    colour = page.evaluate("getComputedStyle(document.querySelector('[data-column=reward]')).borderTopColor")
    assert colour == "rgb(179, 52, 63)"  # the colour of an error
    groups = []
    for number in range(BUDGETS):
        asked = replace(task("math", f"sum-{number}", f"{number}?"), thinking=up_to(number))
        groups.append(group(number, asked, [("1<end>", 1.0)]))
    rewrite(run, groups, [training(2)] * BUDGETS)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    page.locator("#more").click()
    for part, rows in (("BUDGET 1", 11), ("budget 12", 1), ("", BUDGETS)):
        page.locator("[data-column='mode']").fill(part)
        expected = f"{rows} of {BUDGETS}" if part else str(BUDGETS)
        assert page.locator("#count").inner_text() == f"{expected} answers, {BUDGETS} groups"


def test_a_damaged_file_is_told_of_with_its_line_and_the_others_stay_usable(
    page: "Page", run: RunDir, server: ViewServer, capfd: pytest.CaptureFixture[str]
) -> None:
    path, expect = run.trajectory_file("rl", 10), sync_api.expect
    whole = path.read_text(encoding="utf-8")
    for line, said in (("{\n", "line 6 is not JSON"), ('{"a": 1}\n', "line 6 is not an answer")):
        path.write_text(whole + line, encoding="utf-8")
        server.archives.read_ahead()
        page.goto("about:blank")
        page.goto(server.address)
        expect(page.locator("#notice")).to_contain_text(f"rl-10.jsonl, {said}")
        for key in ("j", "g", "n", "2"):  # there are no rows to select
            page.keyboard.press(key)
        page.locator("#search").fill("x")
        page.locator("#clear").click()
        page.locator("#file").select_option("eval-sft")
        expect(page.locator(".row")).to_have_count(6)
        page.locator("#file").select_option("rl-10")
        expect(page.locator("#notice")).to_contain_text(said)
        expect(page.locator("#file")).to_have_value("eval-sft")  # its answers are on the page
        expect(page.locator(".row")).to_have_count(6)
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_without_answers_and_a_file_without_any_say_so(page: "Page", run: RunDir, server: ViewServer) -> None:
    for path in run.trajectories.iterdir():
        path.write_text("", encoding="utf-8")
    visit(page, server)
    assert page.locator("#group").inner_text() == "This file has no answers."
    for path in run.trajectories.iterdir():
        path.unlink()
    page.reload()
    sync_api.expect(page.locator("#notice")).to_contain_text("no recorded answers")
    page.locator("#search").fill("x")
    page.locator("#clear").click()


def test_a_server_that_has_ended_is_told_of_and_no_other_answer_is_shown(
    page: "Page", run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.orchestrator.tools.inspect.viewer.recorded_file.PIECE_BYTES", 10)  # one piece per group
    server = ViewServer(run)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    visit(page, server)
    server.shutdown()
    server.server_close()
    page.keyboard.press("g")
    sync_api.expect(page.locator("#notice")).to_contain_text("has ended")
    assert page.locator("#group").inner_text() == "This answer cannot be shown."


def test_a_server_that_does_not_answer_is_told_of_until_it_does(
    page: "Page", run: RunDir, server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit(page, server)
    goes_on, answer, expect = threading.Event(), server.archives.answer, sync_api.expect

    def held(path: str) -> Any:
        goes_on.wait(20)
        return answer(path)

    monkeypatch.setattr(server.archives, "answer", held)
    page.keyboard.press("j")
    expect(page.locator("#notice")).to_contain_text("Waiting for temper view: it reads rl-10/")
    goes_on.set()
    expect(page.locator("#notice")).not_to_contain_text("Waiting")
    expect(page.locator(".card.chosen")).to_have_attribute("data-row", "1")


def test_what_was_told_is_there_again_once_a_server_has_answered_several_questions(
    page: "Page", run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.orchestrator.tools.inspect.viewer.recorded_file.PIECE_BYTES", 10)  # one piece per group
    server = ViewServer(run)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    visit(page, server)
    notice, goes_on, answer, expect = (
        page.locator("#notice"),
        threading.Event(),
        server.archives.answer,
        sync_api.expect,
    )
    told = notice.text_content()

    def held(path: str) -> Any:
        goes_on.wait(20)
        return answer(path)

    monkeypatch.setattr(server.archives, "answer", held)
    page.keyboard.press("g")
    expect(notice).to_contain_text("Waiting")
    page.keyboard.press("G")
    page.wait_for_timeout(2500)  # the second request is late too
    goes_on.set()
    expect(notice).to_have_text(str(told))
    server.shutdown()
    server.server_close()


def test_a_table_that_comes_late_does_not_take_the_place_of_what_was_chosen_after_it(
    page: "Page", server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit(page, server)
    goes_on, answer, expect = threading.Event(), server.archives.answer, sync_api.expect

    def held(path: str) -> Any:
        if path == "/data/eval-rl/table":
            goes_on.wait(60)
        return answer(path)

    monkeypatch.setattr(server.archives, "answer", held)
    page.locator("#file").select_option("eval-rl")
    page.locator("#file").select_option("eval-sft")
    expect(page.locator(".card.chosen .tokens")).to_have_text("eval-sft 0.0<end>")
    assert page.evaluate("tables.has('eval-rl')") is False
    goes_on.set()
    assert page.evaluate(LATE_TABLE)
    expect(page.locator("#file")).to_have_value("eval-sft")
    expect(page.locator(".card.chosen .tokens")).to_have_text("eval-sft 0.0<end>")


def test_on_a_small_screen_what_is_known_of_a_token_is_in_sight(page: "Page", server: ViewServer) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    visit(page, server)
    page.locator("#tokens span[data-token]").first.click()
    sync_api.expect(page.locator("#token b").first).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_the_cards_of_another_evaluation_are_reached_by_keys(page: "Page", server: ViewServer) -> None:
    page.goto(f"{server.address}#file=eval-rl&against=eval-sft&row=0")
    page.wait_for_selector("body[data-ready]")
    page.locator(".card.chosen").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#file")).to_have_value("eval-sft")
    assert page.url.endswith("#file=eval-sft&against=eval-rl&row=0&colour=surprisal")
