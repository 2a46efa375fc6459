"""The loop's state in a checkpoint: round trip, or refusal with a remedy."""

import json
from pathlib import Path

import pytest

from temper.orchestrator.loop.mixture import Draw
from temper.orchestrator.run.loop_state import EPISODES_FILE, GROUPS_FILE, STATE_FILE, LoopState, read_loop

STATE = LoopState(buffer={"tickets": []}, mixture={"drawn": {"math": 3}}, failures={}, version=7, event_rows=12)
GROUP = {"held": "ready", "env": "math", "index": 2}


def checkpoint(place: Path) -> Path:
    """Write the files of a checkpoint with one waiting group and one group in flight."""
    (place / STATE_FILE).write_text(STATE.to_text())
    (place / GROUPS_FILE).write_text(json.dumps(GROUP) + "\n")
    (place / EPISODES_FILE).write_text('{"ticket": 4}\n')
    return place


def test_what_a_checkpoint_says_of_the_loop_is_read_back(tmp_path: Path) -> None:
    saved = read_loop(checkpoint(tmp_path))
    assert saved.state == STATE
    assert [(group.draw, group.data) for group in saved.groups] == [(Draw(env="math", index=2), GROUP)]
    assert saved.episodes == [{"ticket": 4}]


@pytest.mark.parametrize("told", [{"mixture": {}, "buffer": []}, {"format": 9, "tickets": []}])
def test_a_checkpoint_of_another_format_is_named_with_what_to_do(tmp_path: Path, told: dict[str, object]) -> None:
    (checkpoint(tmp_path) / STATE_FILE).write_text(json.dumps(told))
    (tmp_path / GROUPS_FILE).unlink()
    words = f"{tmp_path}.* has format {told.get('format')}, .* model.path={tmp_path}"
    with pytest.raises(ValueError, match=words):
        read_loop(tmp_path)


@pytest.mark.parametrize("name", [STATE_FILE, GROUPS_FILE, EPISODES_FILE])
@pytest.mark.parametrize("text", [None, '{"format": 1', '{"format": 1}[]'])
def test_a_file_that_is_missing_or_damaged_is_named_with_what_to_do(
    tmp_path: Path, name: str, text: str | None
) -> None:
    file = checkpoint(tmp_path) / name
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=f"{file} .*remove {tmp_path}"):
        read_loop(tmp_path)


def test_a_state_that_lacks_a_part_is_damaged(tmp_path: Path) -> None:
    file = checkpoint(tmp_path) / STATE_FILE
    told = json.loads(file.read_text())
    del told["event_rows"]
    file.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="event_rows.*remove"):
        read_loop(tmp_path)
