"""Episodes on an OpenEnv server: sessions, rewards, mistakes of the model and faults of the server."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.task import Task
from temper.envs.core.turn_text import parse_turn
from temper.envs.data.config import DataConfig
from temper.envs.env_episode import EnvEpisode
from temper.envs.source import open_source
from temper.rewards.score import Outcome


def observed(text: str, reward: float | None = None, *, done: bool = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"text": text, "n": 1}, "reward": reward, "done": done}}


def play_session(socket: ServerConnection) -> None:
    """A session that pays 0.5 for each word `good`, and ends with `end`."""
    seed = 0
    for raw in socket:
        match json.loads(raw):
            case {"type": "reset", "data": {"seed": 13}}:
                reply = {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}}
            case {"type": "reset", "data": {"seed": 14}}:
                return
            case {"type": "reset", "data": data}:
                seed = data.get("seed", 0)
                reply = observed(f"begin {seed}")
            case {"type": "step", "data": {"word": "refused" | "bug" as word}}:
                errors = [
                    {
                        "loc": ["word" if word == "refused" else "observation"],
                        "type": "value_error",
                        "msg": "no such word",
                    }
                ]
                reply = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "-", "errors": errors}}
            case {"type": "step", "data": {"word": "crash"}}:
                reply = {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "broken"}}
            case {"type": "step", "data": {"word": "hang"}}:
                continue
            case {"type": "step", "data": {"word": "nonsense"}}:
                reply = {"type": "observation", "data": {"observation": 7}}
            case {"type": "step", "data": {"word": word}}:
                reply = observed(f"{word} {seed}", {"good": 0.5, "true": True}.get(word), done=word == "end")
            case _:
                return
        socket.send(json.dumps(reply))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(play_session, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


def task_of(url: str, *, max_turns: int | None = None, **options: Any) -> Task:
    given = {"url": url, "prompt": "Say a word.", "action": "word", "observation": "text", "timeout_s": 1.0} | options
    config = EnvConfig(kind="openenv", options=given, max_turns=max_turns, thinking=False)
    return open_source(bind("words", config), split="train", seed=1).task(0)


def played(task: Task, *texts: str) -> tuple[list[str], Any]:
    """The texts that the model sees, and the result of its last turn."""
    episode = EnvEpisode(task)
    try:
        seen = [message["content"] for message in episode.begin()]
        for text in texts:
            result = episode.step(parse_turn(text, thinks=False))
            seen += [message["content"] for message in result.messages]
        return seen, result
    finally:
        episode.close()


def test_seeds_are_held_out(url: str) -> None:
    env = bind("words", EnvConfig(kind="openenv", options={"url": url, "prompt": "Say a word.", "action": "word"}))
    sources = [open_source(env, split=split, seed=1) for split in ("train", "heldout")]
    train, heldout = ({source.task(index).spec["reset"]["seed"] for index in range(50)} for source in sources)
    assert (len(train), len(heldout), train & heldout) == (50, 50, set())


def test_rewards_of_a_session_add_up(url: str) -> None:
    task = task_of(url)
    seed = task.spec["reset"]["seed"]
    seen, result = played(task, "good", "good", "end")
    assert seen == [f"begin {seed}", f"good {seed}", f"good {seed}"]
    assert (result.done, result.reward, result.score.outcome) == (True, 1.0, Outcome.OK)
    assert played(task, "true", "end")[1].reward == 1.0  # the server may pay with a bool


def test_a_refused_action_is_shown_and_the_episode_continues(url: str) -> None:
    seen, result = played(task_of(url), "refused", "good", "end")
    assert "no such word" in seen[1]
    assert (result.reward, result.score.outcome) == (0.5, Outcome.WRONG)
    assert result.score.parts["bad_actions"] == pytest.approx(1 / 3)


def test_the_limit_of_turns_keeps_the_rewards_so_far(url: str) -> None:
    _, result = played(task_of(url, max_turns=2), "good", "bad")
    assert (result.done, result.truncated, result.reward) == (True, True, 0.5)


def test_without_a_field_the_answer_is_the_action_as_json(url: str) -> None:
    seen, result = played(task_of(url, action=None, observation=None), "good", '{"word": "good"}', '{"word": "end"}')
    assert seen[1].startswith("error:")
    assert json.loads(seen[2])["n"] == 1
    assert result.reward == 0.5


@pytest.mark.parametrize("word", ["crash", "hang", "nonsense", "bug"])
def test_a_fault_of_the_server_is_not_a_reward(word: str, url: str) -> None:
    with pytest.raises(EnvironmentFault):
        played(task_of(url), word)


def test_a_server_that_is_full_or_down_is_a_fault(url: str) -> None:
    """It answers with an error, or closes the session. Both name the server's setting."""
    env = bind("words", EnvConfig(kind="openenv", options={"url": url, "action": "word"}))
    (form,) = env.definition.formats
    for seed in (13, 14):
        row = {"prompt": "Say a word.", "reset": {"seed": seed}}
        with pytest.raises(EnvironmentFault, match="max_concurrent_envs"):
            played(env.task(form.load(row), "0"), "good")
    with pytest.raises(EnvironmentFault):
        played(task_of("http://127.0.0.1:9"), "good")


def test_a_redirect_is_not_followed(url: str) -> None:
    def redirect(socket: ServerConnection, request: Request) -> Response:
        return Response(307, "Elsewhere", Headers(location=f"{url.replace('http', 'ws')}/ws"))

    with serve(play_session, "127.0.0.1", 0, process_request=redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(EnvironmentFault):
            played(task_of(f"http://127.0.0.1:{server.socket.getsockname()[1]}"), "good")
        server.shutdown()


def test_rows_that_differ_in_the_reset_are_different_requests(url: str, tmp_path: Path) -> None:
    rows = [{"prompt": "Say a word.", "reset": {"seed": seed}} for seed in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = DataConfig(path=str(tmp_path / "rows.jsonl"))
    config = EnvConfig(kind="openenv", data=data, drop_overlap="exact", options={"url": url, "action": "word"})
    train, heldout = (open_source(bind("words", config), split=split, seed=1) for split in ("train", "heldout"))
    assert train.size
    assert heldout.size
    assert train.size + heldout.size == len(rows)


@pytest.mark.parametrize(
    "options",
    [{"url": "http://example.org"}, {"prompt": 7}, {"retries": 2}, {"action": ["word"]}, {"url": "ws://127.0.0.1"}],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="options"):
        task_of(**{"url": "http://127.0.0.1:9"} | options)
