import errno
import json
import logging
from pathlib import Path

import pytest

from learner.checkpoint import (
    MANIFEST,
    DamagedCheckpointError,
    begin,
    commit,
    latest,
    steps,
    verify,
    writing,
)


def write(stage: Path, step: int) -> Path:
    directory = begin(stage, step, needed_bytes=0)
    (directory / "learner").mkdir()
    (directory / "model.safetensors").write_bytes(b"weights of %d" % step)
    (directory / "learner" / "facts.json").write_text(json.dumps({"steps": step}), encoding="ascii")
    return commit(directory)


def test_the_latest_whole_checkpoint_is_found_by_scanning(tmp_path):
    assert latest(tmp_path / "rl") is None
    write(tmp_path, 9)
    newest = write(tmp_path, 10)
    assert latest(tmp_path) == newest


def test_only_the_last_two_are_kept(tmp_path):
    for step in (1, 2, 30):
        write(tmp_path, step)
    assert steps(tmp_path) == [2, 30]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000030"]


@pytest.mark.parametrize(
    "damage", ["flipped", "truncated", "empty", "missing", "added", "manifest cut", "manifest gone"]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, damage):
    before, damaged = write(tmp_path, 1), write(tmp_path, 2)
    weights = damaged / "model.safetensors"
    manifest = damaged / MANIFEST
    match damage:
        case "flipped":
            weights.write_bytes(b"Weights of 2")
        case "truncated":
            weights.write_bytes(b"weights")
        case "empty":
            weights.write_bytes(b"")
        case "missing":
            weights.unlink()
        case "added":
            (damaged / "extra").write_text("x")
        case "manifest cut":
            manifest.write_bytes(manifest.read_bytes()[:20])
        case "manifest gone":
            manifest.unlink()
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == before
    assert "checkpoint of step 2 is damaged" in caplog.text


def test_nothing_starts_from_scratch_where_no_checkpoint_is_whole(tmp_path):
    (write(tmp_path, 1) / "model.safetensors").unlink()
    with pytest.raises(DamagedCheckpointError, match="no checkpoint in .* is whole"):
        latest(tmp_path)


def test_an_interrupted_checkpoint_is_never_seen_and_is_cleared_away(tmp_path):
    write(tmp_path, 1)
    (begin(tmp_path, 2, needed_bytes=0) / "model.safetensors").write_bytes(b"half")
    assert steps(tmp_path) == [1]
    assert list(begin(tmp_path, 2, needed_bytes=0).iterdir()) == []


def test_the_same_step_can_be_written_again(tmp_path):
    (write(tmp_path, 1) / "model.safetensors").write_bytes(b"damaged")
    verify(write(tmp_path, 1))


def test_a_full_disk_is_an_error_before_anything_is_written_and_older_checkpoints_stay(tmp_path):
    before = write(tmp_path, 1)
    with pytest.raises(OSError, match=rf"needs {2**60} bytes.*{tmp_path}") as raised:
        begin(tmp_path, 2, needed_bytes=2**60)
    assert raised.value.errno == errno.ENOSPC
    assert latest(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_a_disk_that_fills_up_while_writing_leaves_the_older_ones(tmp_path):
    before = write(tmp_path, 1)

    def fill(error: Exception) -> None:
        with writing(tmp_path, 2, needed_bytes=1000) as directory:
            (directory / "model.safetensors").write_bytes(b"12345")
            raise error

    with pytest.raises(OSError, match="no space for a checkpoint: it needs 1000 bytes") as raised:
        fill(OSError(errno.ENOSPC, "No space left on device"))
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="something else"):
        fill(RuntimeError("something else"))
    assert latest(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_what_was_written_in_full_is_committed(tmp_path):
    with writing(tmp_path, 3, needed_bytes=1000) as directory:
        (directory / "model.safetensors").write_bytes(b"12345")
    assert latest(tmp_path) == tmp_path / "000003"
