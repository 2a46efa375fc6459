"""The viewer in a real browser: display, clicks and keys. Skips without Chromium."""

import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from support.browsing import CHROMIUM, NONE_HERE, launched, one_page, sync_api
from support.viewed_run import (
    CLOSING,
    HOSTILE,
    SPLIT,
    nested_group,
    step_groups,
    write_large_run,
    write_viewed_run,
)

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.server import ViewServer
from temper.rollout.trajectory_json import write_groups

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE_HERE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_viewed_run(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page that requests nothing from other hosts and ends without errors."""
    asked: list[str] = []
    with one_page(browser) as (page, errors):
        page.on("request", lambda request: asked.append(request.url))
        yield page
    assert errors == []
    assert {urlsplit(address).hostname for address in asked} <= {None, "127.0.0.1"}


@pytest.fixture(scope="module")
def step(run: RunDir) -> str:
    out = run.root / "step.html"
    assert main(["view", str(run.root), "--step", "10", "--out", str(out)]) == 0
    return out.as_uri()


@pytest.fixture(scope="module")
def evaluation(run: RunDir) -> str:
    out = run.root / "evaluation.html"
    assert main(["view", str(run.root), "--evaluation", "rl", "--against", "sft", "--out", str(out)]) == 0
    return out.as_uri()


def visit(page: "Page", address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("body[data-ready]")


def choose(page: "Page", number: int) -> None:
    page.locator(f".row[data-row='{number}']").click()
    page.wait_for_selector(f".card.chosen[data-row='{number}']")


def tokens(page: "Page") -> str:
    return "".join(page.locator("#tokens span[data-token]").all_text_contents())


def test_text_of_a_model_is_shown_as_text_whatever_stands_in_it(page: "Page", step: str) -> None:
    visit(page, step)
    choose(page, 1)
    assert tokens(page) == f"2+3? {HOSTILE}51 {SPLIT}{HOSTILE}<end>"
    assert page.locator("#group .message").text_content() == f"user  2+3? {HOSTILE}"
    assert page.title() == "tiny - temper view"
    assert page.locator("img").count() == 0


def test_the_answers_of_a_group_stand_side_by_side_marked_where_they_part(page: "Page", step: str) -> None:
    visit(page, step)
    choose(page, 0)
    cards = page.locator(".card")
    assert cards.count() == 3
    assert cards.nth(1).locator(".parts").text_content() == "1"  # 5<end> against 51 ...
    assert page.locator("#tokens .parts").text_content() == "<end>"
    cards.nth(1).click()
    page.wait_for_selector(".card.chosen[data-row='1']")
    assert page.locator("#tokens .parts").text_content() == "1"


def test_a_token_tells_what_is_known_of_it_and_its_address_leads_back(page: "Page", step: str) -> None:
    visit(page, step)
    choose(page, 1)
    page.locator("#tokens span[data-token]", has_text=re.compile("^1$")).first.click()
    told = page.locator("#token").inner_text()
    facts = (
        "engine logprob -0.010",
        "trainer logprob -0.030",
        "mismatch -0.020",
        "advantage -0.500",
        "version 3",
        "lag 2",
    )
    assert [fact for fact in facts if fact not in told] == [], told
    address = page.url
    assert re.search(r"#file=rl-10&row=1&token=\d+&colour=advantage$", address)
    visit(page, address)
    assert page.locator("#token").inner_text() == told
    assert page.locator("#tokens .chosen").text_content() == "1"


def test_colours_say_what_was_forced_and_why_tokens_carry_no_loss(page: "Page", step: str) -> None:
    visit(page, step)
    choose(page, 3)
    page.keyboard.press("6")
    assert "token_range 2" in page.locator("#legend").inner_text()
    assert "truncated" in page.locator("#legend").inner_text()
    coloured = page.locator("#tokens span[style*='background']")
    assert coloured.all_text_contents() == ["e", "t", ")"]  # the second and third by their range, the last is injected
    page.keyboard.press("5")
    assert coloured.all_text_contents() == [")"]
    page.keyboard.press("4")
    assert coloured.all_text_contents() == ["g", "e", "8", "0"]  # of the older version


def test_forced_answers_follow_the_turns_of_their_answer(page: "Page", tmp_path: Path) -> None:
    run, out = write_viewed_run(tmp_path / "tiny"), tmp_path / "step.html"
    write_groups(run.trajectory_file("rl", 10), [nested_group()])
    assert main(["view", str(run.root), "--step", "10", "--out", str(out)]) == 0
    visit(page, out.as_uri())
    choose(page, 0)
    forced = page.locator(".forced")
    assert forced.locator(".tokens").all_text_contents() == [f"{CLOSING}7<end>", f"{CLOSING}5<end>", ""]
    for row, facts in enumerate((("2", "reward 0"), ("4", "reward 1"), ("6", "timeout", "too slow"))):
        shown = forced.nth(row).inner_text()
        assert [fact for fact in facts if fact not in shown] == [], shown
    assert tokens(page) == "2+3?2+3=5 so 5<end>"
    page.keyboard.press("5")
    assert forced.first.locator("span[style*='background']").all_text_contents() == list(CLOSING)
    choose(page, 1)
    assert forced.count() == 0


def test_filters_search_sorting_and_keys_go_through_the_table(page: "Page", step: str) -> None:
    visit(page, step)
    page.locator("[data-column='env']").select_option("shop")
    assert page.locator(".row").count() == 2
    page.locator("[data-column='reward']").fill(">0.5")
    assert page.locator("#count").inner_text() == "1 of 5 answers, 2 groups"
    page.locator("#clear").click()
    page.locator("#more").click()
    page.locator("[data-column='reward']").fill("-")
    assert page.locator(".row").all_text_contents()[0].count("timeout") == 1
    page.locator("#clear").click()
    page.locator("#search").fill("GET H")
    assert page.locator(".row").count() == 2
    page.keyboard.press("Escape")
    page.locator("#clear").click()
    page.locator("#heads button", has_text="tokens").click()
    assert page.locator(".row").first.get_attribute("data-row") == "1"  # the longest
    page.locator("#heads button", has_text="tokens").click()
    page.locator("#heads button", has_text="tokens").click()
    choose(page, 0)
    for key, chosen in (("j", 1), ("j", 2), ("k", 1), ("g", 3), ("G", 2)):
        page.keyboard.press(key)
        page.wait_for_selector(f".row.chosen[data-row='{chosen}']")


def test_what_a_file_does_not_record_is_said_and_not_shown_as_zero(page: "Page", evaluation: str) -> None:
    visit(page, evaluation)
    assert "Not recorded in this file" in page.locator("#notice").inner_text()
    for name in ("mismatch", "advantage", "loss"):
        assert page.locator(f"[data-colour='{name}']").is_disabled()
    heads = page.locator("#heads").inner_text()
    assert "mismatch" not in heads
    page.locator("#tokens span[data-token]").last.click()
    assert "mismatch not recorded" in page.locator("#token").inner_text()


def test_the_same_task_is_shown_of_two_evaluations(page: "Page", evaluation: str) -> None:
    visit(page, evaluation)
    page.locator("[data-column='change']").fill(">0")
    assert page.locator(".row").count() == 2
    page.locator(".row").first.click()
    shown = page.locator("#group").inner_text()
    assert "same task in evaluation sft, 2 answers" in shown
    assert page.locator(".card").count() == 4
    assert page.locator(".card .tokens").all_text_contents() == ["eval-rl 1.0<end>"] * 2 + ["eval-sft 0.0<end>"] * 2
    page.locator(".card").nth(2).click()
    sync_api.expect(page.locator("#file")).to_have_value("eval-sft")
    sync_api.expect(page.locator(".card.chosen .tokens")).to_have_text("eval-sft 0.0<end>")
    assert tokens(page).endswith("eval-sft 0.0<end>")


def test_the_command_serves_the_run_until_it_is_interrupted(page: "Page", run: RunDir) -> None:
    command = [sys.executable, "-m", "temper.orchestrator", "view", str(run.root)]
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores SIGINT
    try:
        serve = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[6])
    finally:
        signal.signal(signal.SIGINT, ours)
    try:
        assert serve.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", serve.stdout.readline())
        assert found is not None
        visit(page, found[0])
        page.locator("#file").select_option("eval-sft")
        sync_api.expect(page.locator(".row")).to_have_count(6)
        refused = urllib.request.Request(found[0], headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(refused, timeout=10)
        page.goto("about:blank")  # else a request of the page may meet the end of the server
        serve.send_signal(signal.SIGINT)
        assert serve.wait(timeout=10) == 0
    finally:
        serve.kill()
        serve.communicate()


def test_a_file_that_the_run_writes_again_is_read_again_and_never_shown_beside_its_old_table(
    browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, expect = write_viewed_run(tmp_path / "tiny"), sync_api.expect
    monkeypatch.setattr("temper.orchestrator.tools.inspect.viewer.recorded_file.PIECE_BYTES", 10)  # one piece per group
    groups, rows = step_groups()
    with ViewServer(run) as server, one_page(browser) as (page, errors):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit(page, server.address)
        page.locator("[data-column='env']").select_option("shop")
        expect(page.locator(".row")).to_have_count(2)

        write_groups(run.trajectory_file("rl", 10), groups[::-1], training=rows[2:] + rows[:2])
        page.locator(".row[data-row='3']").click()  # in a piece that the page has not requested yet
        expect(page.locator("#notice")).to_contain_text("rl-10")
        assert [row.get_attribute("data-row") for row in page.locator(".row").all()] == ["0", "1"]
        expect(page.locator("[data-column='env']")).to_have_value("shop")
        assert page.locator("#tokens").count() == 0
        choose(page, 1)
        assert tokens(page).startswith("get h")
        assert page.locator(".command pre").inner_text().endswith(" --row 1")

        write_groups(run.trajectory_file("rl", 10), groups[:1], training=rows[:2])
        page.locator(".command button").click()  # its command now names another answer
        expect(page.locator("#count")).to_have_text("0 of 3 answers, 1 groups")
        expect(page.locator("[data-column='env']")).to_have_value("shop")
        page.locator("#clear").click()
        choose(page, 1)

        write_groups(run.trajectory_file("rl", 10), groups, training=rows)
        page.locator(".row[data-row='0']").click()  # in a piece that the page has
        expect(page.locator(".row")).to_have_count(5)
        expect(page.locator("#notice")).to_contain_text("rl-10")
        assert {error for error in errors if "409" not in error} == set()
        server.shutdown()


@pytest.mark.slow
def test_fifty_megabytes_of_rows_open_within_two_seconds(browser: "Browser", tmp_path: Path) -> None:
    """Writing the rows takes 20 s. Run it alone, because other load changes the measured time."""
    run = write_large_run(tmp_path / "large", megabytes=50)
    out = tmp_path / "large.html"
    assert main(["view", str(run.root), "--out", str(out)]) == 0
    with ViewServer(run) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        seconds = {}
        for name, address in (("file", out.as_uri()), ("served", server.address)):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            began = time.monotonic()
            visit(page, address)
            seconds[name] = time.monotonic() - began
            assert page.locator("#tokens span[data-token]").count() > 100
            page.close()
        server.shutdown()
    size = run.trajectory_file("rl", 10).stat().st_size
    print(f"{size / 1e6:.0f} MB of rows, a page of {out.stat().st_size / 1e6:.1f} MB: {seconds}")
    assert size > 50e6
    assert max(seconds.values()) < 2.0
