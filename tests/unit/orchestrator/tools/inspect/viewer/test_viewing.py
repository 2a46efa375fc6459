"""The viewer's columns, files and server, without a browser."""

import gzip
import http.client
import json
import math
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.viewed_run import (
    CLOSING,
    HOSTILE,
    SPLIT,
    TOOL_SAYS,
    nested_group,
    step_groups,
    tokenizer,
    training,
    write_viewed_run,
)

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.archive import Archive
from temper.orchestrator.tools.inspect.viewer.page import render_page
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines, Row, find_file, recorded_files
from temper.orchestrator.tools.inspect.viewer.server import ArchiveCache, PageAnswer, ViewServer
from temper.orchestrator.tools.inspect.viewer.table import to_columns, update_sum
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes, tokenizer_of_run
from temper.rollout.trajectory_json import write_groups


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_viewed_run(tmp_path_factory.mktemp("runs") / "tiny")


def unpacked(data: bytes) -> Any:
    return json.loads(gzip.decompress(data))


def columns(run: RunDir, name: str) -> dict[str, list[Any]]:
    return to_columns(Lines(run.trajectories / f"{name}.jsonl").rows())


def test_the_files_of_a_run_are_known_by_what_they_are_of(run: RunDir) -> None:
    found = {(one.kind, one.label) for one in recorded_files(run)}
    assert found == {("step", "rl/10"), ("evaluation", "sft"), ("evaluation", "rl")}
    assert find_file(run).name == find_file(run, step="10").name == find_file(run, step="rl/10").name == "rl-10"
    assert find_file(run, evaluation="rl").name == "eval-rl"
    with pytest.raises(ValueError, match=r"--step 3: .* rl/10"):
        find_file(run, step="3")


def test_columns_say_what_answers_and_their_groups_are(run: RunDir) -> None:
    found = columns(run, "rl-10")
    assert found["env"] == ["math"] * 3 + ["shop"] * 2
    assert found["reward"] == [1.0, 0.0, None, 1.0, 0.0]
    assert found["spread"] == [0.5] * 5
    assert found["lag"] == [2, 2, None, 1, 1]
    assert found["mismatch"] == pytest.approx([0.02, 0.02, None, *_gaps_of_tools(), None], abs=2e-5)
    assert found["advantage"] == [0.5, -0.5, None, 0.5, None]
    assert found["masked"] == ["", "", None, "token_range", "truncated"]
    assert found["share"][::2] == [found["share"][0]] * 2 + [found["share"][3]]
    assert found["share"][0] + found["share"][3] == pytest.approx(1)
    assert found["share"][0] > found["share"][3] > 0
    assert found["failure"] == [None, None, "timeout", None, None]
    assert (found["tool_s"][3], found["turns"][3], found["injected"][3]) == (0.5, 2, 1)
    evaluated = columns(run, "eval-rl")  # without a record of training
    for name in ("lag", "mismatch", "advantage", "masked", "share"):
        assert evaluated[name] == [None] * 6
    assert evaluated["surprisal"][0] > 0


def test_the_update_sum_of_an_answer_is_the_sum_over_its_tokens_of_advantage_times_factor() -> None:
    record: dict[str, Any] = {"logprobs": [-1.0] * 3, "advantage": [0.5, -2.0, None], "factor": [1.0, 0.5, 1.0]}
    assert update_sum(record) == 1.5
    assert update_sum(record | {"advantage": -0.5, "factor": 2.0}) == 3.0
    assert update_sum({"untrained": "truncated"}) == update_sum(None) == 0.0
    for advantage, factor in (([1.0, -2.0, 0.5], [1.0, math.nan, 2.0]), ([math.inf, -2.0, 0.0], 1.0)):
        assert update_sum(record | {"advantage": advantage, "factor": factor}) == 2.0  # non-finite values count as 0


def _gaps_of_tools() -> list[float]:
    """Compute the mean of |log pi - log mu| of the answer with a tool, from the fixture's data."""
    groups, _ = step_groups()
    chosen = groups[1].trajectories[0]
    engine = [value for turn in chosen.turns for value in turn.logprobs_T.tolist() if value == value]
    ours = training(len(engine))["logprobs"]
    return [sum(abs(one - other) for one, other in zip(ours, engine, strict=True)) / len(engine)]


def test_a_piece_has_whole_groups_with_the_bytes_of_their_tokens(run: RunDir) -> None:
    archive = Archive(find_file(run), tokenizer_of_run(run))
    assert unpacked(archive.table)["pieces"] == [[0, 5]]
    piece = unpacked(archive.piece(0))
    turn = piece["groups"][0]["answers"][1]["turns"][0]
    text = b"".join(piece["bytes"][str(one)].encode("latin-1") for one in turn["sampled_ids"]).decode()
    assert text == f"51 {SPLIT}{HOSTILE}<end>"
    assert (turn["versions"][0], turn["injected"]) == ([3, 2], [])
    assert piece["groups"][1]["answers"][0]["turns"][0]["injected"] == [[len("get(h)") - 1, 1]]
    assert piece["groups"][1]["answers"][0]["turns"][0]["observation"] == [{"role": "tool", "content": TOOL_SAYS}]


def test_forced_answers_leave_out_the_tokens_that_they_share(tmp_path: Path) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    write_groups(run.trajectory_file("rl", 10), [nested_group()])
    piece = unpacked(Archive(find_file(run), tokenizer_of_run(run)).piece(0))
    whole, plain = piece["groups"][0]["answers"]
    assert plain["forced_answers"] == []
    forced = whole["forced_answers"]
    assert [(one["budget"], one["kept"], one["reward"]) for one in forced] == [(2, 2, 0.0), (4, 4, 1.0), (6, 0, None)]
    assert forced[2]["failure"]["kind"] == "timeout"
    turns = [one["turns"][0] for one in forced[:2]]
    texts = ["".join(piece["bytes"][str(one)] for one in turn["sampled_ids"]) for turn in turns]
    assert texts == [f"{CLOSING}7<end>", f"{CLOSING}5<end>"]
    assert [(turn["context_ids"], turn["injected"]) for turn in turns] == [([], [[0, len(CLOSING)]])] * 2


def test_groups_stay_whole_where_a_file_has_several_pieces(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(run.trajectories / "eval-rl.jsonl")
    tickets = [row["ticket"] for row in lines.rows()]
    monkeypatch.setattr("temper.orchestrator.tools.inspect.viewer.recorded_file.PIECE_BYTES", 10)
    assert lines.pieces(tickets) == [(0, 2), (2, 2), (4, 2)]
    assert [row["ticket"] for row in lines.some(2, 2)] == tickets[2:4]


def test_bytes_of_tokens_are_those_of_the_text_that_they_decode_to(tmp_path: Path) -> None:
    made = tokenizer()
    made.save(str(tmp_path / "tokenizer.json"))
    text = bytes(range(1, 256)).decode("latin-1") + SPLIT + "<end>"
    known = TokenBytes(tmp_path / "tokenizer.json")
    assert b"".join(known.of(one).encode("latin-1") for one in made.encode(text).ids).decode() == text
    assert known.of(10**6) == "<1000000>"


def test_a_last_line_that_is_being_written_is_left_out_and_a_bad_one_is_named(run: RunDir, tmp_path: Path) -> None:
    whole = (run.trajectories / "eval-rl.jsonl").read_bytes()
    (tmp_path / "torn.jsonl").write_bytes(whole[:-20])
    assert len(list(Lines(tmp_path / "torn.jsonl").rows())) == 5
    (tmp_path / "bad.jsonl").write_bytes(whole + b"{\n")
    with pytest.raises(ValueError, match="line 7 "):
        list(Lines(tmp_path / "bad.jsonl").rows())
    row = json.loads(whole.splitlines()[0])
    lacks = {name: value for name, value in row["turns"][0].items() if name != "injected"}
    for other in (3, {"ticket": 1}, row | {"turns": 1}, row | {"turns": [lacks]}):
        (tmp_path / "bad.jsonl").write_text(json.dumps(other) + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"bad\.jsonl, line 1 "):
            list(Lines(tmp_path / "bad.jsonl").rows())


def test_nothing_that_a_model_wrote_stands_in_the_page_as_it_was_written(run: RunDir, tmp_path: Path) -> None:
    file = find_file(run)
    page = render_page(
        {"run": HOSTILE, "files": [file.about()]}, archives={file.name: Archive(file, tokenizer_of_run(run))}
    )
    assert page.count("<script") == page.count("</script>") == len(Archive(file, None).pieces) + 3
    assert "<img" not in page
    assert TOOL_SAYS not in page


@pytest.fixture(scope="module")
def server(run: RunDir) -> Iterator[ViewServer]:
    with ViewServer(run) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def asked(server: ViewServer, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_has_the_page_and_the_columns_of_each_file(server: ViewServer) -> None:
    status, page = asked(server, "/")
    assert (status, b"temper view" in page) == (200, True)
    assert unpacked(asked(server, "/data/rl-10/table")[1])["rows"] == 5
    mark = unpacked(asked(server, "/data/eval-rl/table")[1])["mark"]
    assert len(unpacked(asked(server, f"/data/eval-rl/{mark}/0")[1])["groups"]) == 3
    assert asked(server, f"/data/eval-rl/{mark}/9")[0] == 404


def test_a_piece_of_a_file_that_was_written_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    state = run.state()
    run.store(replace(state, model=None))  # the viewer starts before the run has a model
    path, (groups, rows) = run.trajectory_file("rl", 10), step_groups()
    monkeypatch.setattr("temper.orchestrator.tools.inspect.viewer.recorded_file.PIECE_BYTES", 10)
    archives = ArchiveCache(run)

    def status(which: str) -> int:
        return archives.answer(f"/data/rl-10/{mark}/{which}").status

    run.store(state)
    table = unpacked(archives.answer("/data/rl-10/table").body)
    mark = table["mark"]
    assert table["tokenizer"]
    assert [status(which) for which in ("0", "1", "same")] == [200] * 3
    write_groups(path, groups[::-1], training=rows[2:] + rows[:2])
    assert [status(which) for which in ("0", "1", "same")] == [409] * 3
    old, mark = mark, unpacked(archives.answer("/data/rl-10/table").body)["mark"]
    assert (status("0"), old == mark) == (200, False)
    some = Lines.some

    def while_it_is_written(lines: Lines, first: int, count: int) -> list[Row]:
        write_groups(path, groups, training=rows)
        return some(lines, first, count)

    monkeypatch.setattr(Lines, "some", while_it_is_written)
    assert status("1") == 409


def test_only_this_machine_is_served_under_its_own_names(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert asked(server, "/", f"localhost:{server.server_port}")[0] == 200
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", ""):
        assert asked(server, "/data/rl-10/table", host)[0] == 403


def test_nothing_else_of_the_machine_is_served(server: ViewServer) -> None:
    for path in ("config.yaml", "data/../config.yaml", "data/..%2Fmanifest/table"):
        assert asked(server, f"/{path}")[0] == 404
    for path in ("rl-10/9", "rl-10/x", "x/table"):
        assert asked(server, f"/data/{path}")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", "10"], "--step"),
        (["--out", "x.html", "--against", "sft"], "--against sft needs --evaluation"),
        (["--out", "x.html", "--evaluation", "dpo"], "--evaluation dpo: .* rl, sft"),
    ],
)
def test_what_the_command_can_not_do_is_said(
    run: RunDir, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(run.root), *arguments]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_browser_that_goes_away_is_not_told_of_and_a_fault_is(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(path: str) -> PageAnswer:
        if path == "/fault":
            raise RuntimeError("planted")
        return PageAnswer(body=b"x" * 2**25)

    with ViewServer(run) as made:
        monkeypatch.setattr(made.archives, "answer", answer)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        before = set(threading.enumerate())
        for path in ("/large", "/fault"):
            browser = socket.create_connection(("127.0.0.1", made.server_port), timeout=10)
            browser.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{made.server_port}\r\n\r\n".encode())
            browser.recv(16)
            browser.close()  # the rest of the answer is unread
            for thread in set(threading.enumerate()) - before:
                thread.join(10)
            said = capsys.readouterr().err
            assert ("RuntimeError: planted" in said, said == "") == (path == "/fault", path == "/large")
        made.shutdown()
