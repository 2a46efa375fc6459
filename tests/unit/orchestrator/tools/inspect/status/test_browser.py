"""The live page in a real browser: it follows the run, says when the driver is gone, and leads to the viewer."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.browsing import CHROMIUM, NONE_HERE, launched, one_page, sync_api
from support.viewed_run import HOSTILE, write_viewed_run

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.session.status import MemberStatus, RunStatus
from temper.orchestrator.tools.inspect.status.live_page import FACTS, LivePage
from temper.orchestrator.tools.inspect.viewer.loopback import LoopbackServer, PageAnswer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE_HERE)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with launched() as browser:
        yield browser


def tell(run: RunDir, log: MetricsLog, *, step: int) -> None:
    """Write what a driver writes after a step."""
    log.append("rl", step, {"env/math/reward": step / 10, "train/lag_tokens": 0.5})
    RunStatus(
        pid=1,
        time=1000.0,
        stage="rl",
        step=step,
        steps=60,
        version=step,
        buffer={"ready": 2},
        tickets=(),
        members=(MemberStatus(name=HOSTILE, state="serving", restarts=0, tickets=(), doing="a pass"),),
        failures={},
        faults=0,
    ).write(run.root)


def test_the_page_follows_the_run_leads_to_the_viewer_and_says_when_the_driver_is_gone(
    browser: "Browser", tmp_path: Path
) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    log = MetricsLog(run.metrics)
    run.open()
    for step in (1, 2):
        tell(run, log, step=step)
    log.event("rl", 2, "alarm", {"rl.bands.kl": HOSTILE})
    server = LoopbackServer(LivePage(run, now=lambda: 1005.0).answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    expect = sync_api.expect
    with one_page(browser) as (page, errors):
        page.goto(server.address)
        page.wait_for_selector("body[data-ready]")
        expect(page.locator("#now")).to_have_text("rl 2/60")
        expect(page.locator("#gone")).to_be_hidden()
        assert "lag of tokens\t0.5 versions" in page.locator("#state").inner_text()
        assert page.locator("#processes th").text_content() == HOSTILE
        assert page.locator("#alarms li").text_content() == f"rl 2: rl.bands.kl: {HOSTILE}"
        assert (page.title(), page.locator("img").count()) == ("tiny - temper status", 0)
        curve = page.locator("[data-curve='env/math/reward']")
        assert len(str(curve.locator("polyline").get_attribute("points")).split()) == 2
        tell(run, log, step=3)
        expect(page.locator("#now")).to_have_text("rl 3/60")
        expect(curve.locator("b")).to_have_text("0.3")
        assert len(str(curve.locator("polyline").get_attribute("points")).split()) == 3
        run.close()
        expect(page.locator("#gone")).to_have_text(
            "The driver is gone: it told its last 5 s ago. The same command goes on with the run."
        )
        page.locator("#recorded a", has_text="step rl/10").click()
        page.wait_for_selector(".row")
        assert page.locator(".row").count() == 5
        assert page.url.startswith(f"{server.address}view/#file=rl-10")
        page.go_back()
        expect(page.locator("#gone")).to_be_visible()
        log.append("rl", 4, {"env/math/reward": 0.4, "train/lag_tokens": float("nan")})
        expect(page.locator("[data-curve='train/lag_tokens'] b")).to_have_text("-")
        log.append("rl", 5, {"env/math/reward": 0.5, "train/lag_tokens": 0.5})
        expect(page.locator("[data-curve='train/lag_tokens'] .bad")).to_have_text("not finite at step 4")
        expect(page.locator("[data-curve='train/lag_tokens'] polyline")).to_have_count(2)  # broken there
        assert page.locator("[data-curve='env/math/reward'] line").count() == 0
        run.config.write_text('{"name": "tiny", "stages": ["rl"]}', encoding="utf-8")
        run.store(replace(run.state(), done={"rl": 60}))
        expect(page.locator("#gone")).to_have_text("The run has ended as planned: all its stages are done.")
        assert errors == []
        server.shutdown()
        server.server_close()
        expect(page.locator("#gone")).to_have_text(
            "temper status --serve answers no longer: it has ended, and this page is as it was then."
        )


def test_the_live_page_is_dark_where_the_browser_prefers_that_and_keeps_what_was_chosen(
    browser: "Browser", tmp_path: Path
) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    tell(run, MetricsLog(run.metrics), step=1)
    with LoopbackServer(LivePage(run, now=lambda: 1005.0).answer) as server, one_page(browser) as (page, errors):
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ground() -> str:
            page.wait_for_selector("body[data-ready]")
            return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

        page.emulate_media(color_scheme="dark")
        page.goto(server.address)
        assert ground() == "rgb(15, 19, 24)"
        page.locator("#theme").click()
        assert ground() == "rgb(244, 246, 248)"
        page.reload()
        assert ground() == "rgb(244, 246, 248)"
        page.goto(f"{server.address}view/")  # the viewer of the same run
        assert ground() == "rgb(244, 246, 248)"
        assert errors == []
        server.shutdown()


def test_a_server_that_is_suspended_is_told_of_and_the_age_of_what_was_told_grows(
    browser: "Browser", tmp_path: Path
) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    run.open()
    tell(run, MetricsLog(run.metrics), step=1)
    live, goes_on = LivePage(run, now=lambda: 1005.0), threading.Event()
    goes_on.set()

    def answer(path: str) -> PageAnswer:
        if path == FACTS:
            goes_on.wait()
        return live.answer(path)

    expect = sync_api.expect
    with LoopbackServer(answer) as server, one_page(browser) as (page, _):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.add_init_script(  # so that nobody waits for 5 s here
            "const whole = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = (ms) => whole(ms / 10);"
        )
        page.goto(server.address)
        expect(page.locator("#age")).to_have_text(re.compile("^told [56] s ago$"))
        expect(page.locator("#gone")).to_be_hidden()
        goes_on.clear()
        expect(page.locator("#gone")).to_have_text(
            re.compile(r"^Nothing has come from temper status --serve for \d+ s: it is suspended or held up")
        )
        expect(page.locator("#age")).to_have_text(re.compile("^told ([789]|[1-9][0-9]) s ago$"))
        goes_on.set()
        expect(page.locator("#gone")).to_be_hidden()
        expect(page.locator("#age")).to_have_text(re.compile("^told [56] s ago$"))
        server.shutdown()
    run.close()
