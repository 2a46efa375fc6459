import errno
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from temper.orchestrator.run.checkpoint import (
    MANIFEST,
    DamagedCheckpointError,
    begin,
    commit,
    discard_on_failure,
    is_complete,
    latest,
    place,
    steps,
    verify,
)
from temper.orchestrator.run.folder import RunDir
from temper.rollout.weights.own_files import own_files

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
"""Audit events that the interpreter raises before a folder changes."""


def write(stage: Path, step: int, *, weights: bytes = b"weights") -> Path:
    directory = begin(stage, step, needed_bytes=0)
    (directory / "learner").mkdir()
    (directory / "model.safetensors").write_bytes(weights + b" of %d" % step)
    (directory / "learner" / "facts.json").write_text(json.dumps({"steps": step}), encoding="ascii")
    return commit(directory)


def damage(checkpoint: Path) -> None:
    """Change the content but not the size, like bad memory or a bad disk."""
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes().upper())
    os.utime(weights, ns=(0, 0))


def in_child(work: Callable[[], Any], *, seen: Callable[[str, Any], None]) -> int:
    """Run `work` in a child process. `seen` receives its audit events, such as open, rename and remove."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.addaudithook(seen)
    work()
    os._exit(0)


def killed_at(change: int) -> Callable[[str, Any], None]:
    """Return an audit hook that ends its process right before the n-th change to a folder."""
    left = iter(range(change - 1, -1, -1))

    def seen(event: str, _arguments: Any) -> None:
        if event in CHANGES and next(left) == 0:
            os._exit(9)

    return seen


def test_the_latest_whole_checkpoint_is_found_by_scanning_and_two_are_kept(tmp_path):
    assert latest(tmp_path / "rl") is None
    for step in (1, 9, 10):
        newest = write(tmp_path, step)
    assert latest(tmp_path) == newest
    assert steps(tmp_path) == [9, 10]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000009", "000010"]


@pytest.mark.parametrize("harm", ["flipped", "truncated", "empty", "missing", "manifest cut", "manifest gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, harm):
    before, damaged = write(tmp_path, 1), write(tmp_path, 2)
    weights = damaged / "model.safetensors"
    manifest = damaged / MANIFEST
    match harm:
        case "flipped":
            damage(damaged)
        case "truncated":
            weights.write_bytes(b"weights")
        case "empty":
            weights.write_bytes(b"")
        case "missing":
            weights.unlink()
        case "manifest cut":
            manifest.write_bytes(manifest.read_bytes()[:20])
        case "manifest gone":
            manifest.unlink()
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == before
    assert "step 2" in caplog.text


FOREIGN = (".nfs0001", ".DS_Store", "note.txt", "learner/._facts.json", "learner/.nfs2", ".ipynb_checkpoints/a.json")


def add(checkpoint: Path, *names: str) -> None:
    for name in names:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(name)


def test_foreign_files_do_not_damage_a_checkpoint_and_are_named_once(tmp_path, caplog):
    newest = write(tmp_path, 1)
    add(newest, *FOREIGN)
    assert [latest(tmp_path) for _ in range(2)] == [newest] * 2
    for name in FOREIGN:
        assert caplog.text.count(name) == 1
        assert (newest / name).exists()


def test_foreign_files_that_libraries_would_load_are_moved(tmp_path):
    newest = write(tmp_path, 1)
    loaded = (
        "model-00002.safetensors",
        "adapter_config.json",
        "learner/optimizer-00001.safetensors",
        "vocab.txt",
        "a.pt",
    )
    add(newest, "note.txt", *loaded)
    assert latest(tmp_path) == newest
    assert [path.name for path in own_files(newest)] == ["facts.json", "model.safetensors"]
    assert [name for name in loaded if (newest / name).exists()] == []
    assert [(tmp_path / "000001.foreign" / name).read_text() for name in loaded] == list(loaded)
    assert steps(tmp_path) == [1]


def test_a_removed_checkpoint_leaves_the_users_files(tmp_path):
    add(write(tmp_path, 1), *FOREIGN)
    for step in (2, 3, 4):
        write(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.foreign", "000003", "000004"]
    assert [path.name for path in (tmp_path / "000001.foreign").rglob("*")] == ["note.txt"]


@pytest.mark.parametrize("taken", [None, "000001.foreign", "000001.foreign/learner"])
def test_moved_files_never_replace_others(tmp_path, taken):
    if taken is not None:
        (tmp_path / taken).parent.mkdir(exist_ok=True)
        (tmp_path / taken).write_text("taken")
    for text in ("first", "second"):
        newest = write(tmp_path, 1, weights=text.encode())
        add(newest, "learner/note.pt")
        (newest / "learner/note.pt").write_text(text)
        assert latest(tmp_path) == newest
    kept = {path.read_text() for path in tmp_path.glob("000001.foreign*/**/*") if path.is_file()}
    assert {"first", "second"} <= kept
    assert taken is None or (tmp_path / taken).read_text() == "taken"


def test_a_file_that_the_file_system_holds_does_not_fail_a_save(tmp_path):
    add(write(tmp_path, 1), "learner/.nfs0001")

    def held(event: str, arguments: Any) -> None:
        if event in ("os.remove", "os.rmdir") and ".nfs" in str(arguments[0]):
            raise OSError(errno.EBUSY, "Device or resource busy")

    assert in_child(lambda: [write(tmp_path, step) for step in (2, 3, 4)], seen=held) == 0
    assert steps(tmp_path) == [3, 4]
    write(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000004", "000005"]


def test_hidden_files_are_never_in_a_manifest(tmp_path):
    directory = begin(tmp_path, 1, needed_bytes=0)
    add(directory, "model.safetensors", ".DS_Store")
    whole = commit(directory)
    (whole / ".DS_Store").unlink()
    verify(whole)


def test_nothing_starts_from_scratch_where_no_checkpoint_is_whole(tmp_path):
    (write(tmp_path, 1) / "model.safetensors").unlink()
    with pytest.raises(DamagedCheckpointError, match=str(tmp_path)):
        latest(tmp_path)


def test_an_interrupted_checkpoint_is_never_seen_and_is_cleared_away(tmp_path):
    write(tmp_path, 1)
    (begin(tmp_path, 2, needed_bytes=0) / "model.safetensors").write_bytes(b"half")
    assert steps(tmp_path) == [1]
    assert list(begin(tmp_path, 2, needed_bytes=0).iterdir()) == []


def test_the_same_step_can_be_written_again(tmp_path):
    (write(tmp_path, 1) / "model.safetensors").write_bytes(b"damaged")
    verify(write(tmp_path, 1))


@pytest.mark.parametrize("there", ["whole", "damaged", "damaged, nothing before"])
def test_a_kill_while_a_step_is_written_again_leaves_a_whole_checkpoint_of_it_or_of_the_one_before(tmp_path, there):
    begun = tmp_path / "begun"
    for step in (25,) if there == "damaged, nothing before" else (10, 20, 25):
        write(begun, step)
    if there != "whole":
        damage(place(begun, 25))
    for change in range(1, 100):
        stage = shutil.copytree(begun, tmp_path / str(change))
        again = place(stage, 25)
        status = in_child(partial(write, stage, 25, weights=b"new weights"), seen=killed_at(change))
        try:
            found = latest(stage)
        except DamagedCheckpointError:  # an error, and no silent new start
            assert there == "damaged, nothing before"
        else:
            assert found in ([again] if there == "whole" else [again, place(stage, 20)])
            assert found is not None
            verify(found)
        if status == 0:
            assert (again / "model.safetensors").read_bytes() == b"new weights of 25"
            assert change > 8  # covers every rename and removal
            return
    raise AssertionError("the child never finished")


def test_only_whole_checkpoints_count_among_those_that_are_kept(tmp_path):
    write(tmp_path, 10)
    write(tmp_path, 25)
    damage(write(tmp_path, 50))
    assert latest(tmp_path) == place(tmp_path, 25)
    write(tmp_path, 30)
    assert [step for step in steps(tmp_path) if is_complete(place(tmp_path, step))] == [25, 30]


def test_a_checkpoint_is_read_once_when_it_is_written_and_once_when_it_is_continued_from(tmp_path):
    log = tmp_path / "reads"

    def note(event: str, arguments: Any) -> None:
        if event == "open" and str(arguments[0]).endswith(".safetensors") and not arguments[2] & os.O_WRONLY:
            with log.open("a") as file:
                file.write("r")

    def reads(work: Callable[[], Any]) -> int:
        log.write_text("")
        assert in_child(work, seen=note) == 0
        return len(log.read_text())

    def written() -> None:
        write(tmp_path, 7)
        for _ in range(3):
            assert latest(tmp_path) == place(tmp_path, 7)

    assert reads(written) == 1
    assert reads(lambda: [latest(tmp_path) for _ in range(3)]) == 1


def test_a_model_of_the_run_is_verified_before_it_is_loaded_and_another_is_not_asked_for_a_manifest(tmp_path):
    folder, elsewhere = RunDir(tmp_path / "run"), tmp_path / "model"
    elsewhere.mkdir()
    model = write(folder.checkpoints("sft"), 300)
    assert (folder.verify_model(model), folder.verify_model(elsewhere)) == (model, elsewhere)
    damage(model)
    with pytest.raises(DamagedCheckpointError, match="model.safetensors"):
        folder.verify_model(model)


def test_a_full_disk_is_an_error_before_anything_is_written_and_older_checkpoints_stay(tmp_path):
    before = write(tmp_path, 1)
    with pytest.raises(OSError, match=rf"{2**60} bytes.*{tmp_path}") as raised:
        begin(tmp_path, 2, needed_bytes=2**60)
    assert raised.value.errno == errno.ENOSPC
    assert latest(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_a_disk_that_fills_up_while_writing_leaves_the_older_ones(tmp_path):
    before = write(tmp_path, 1)

    def fill(error: Exception) -> None:
        directory = begin(tmp_path, 2, needed_bytes=1000)
        with discard_on_failure(directory, needed_bytes=1000):
            (directory / "model.safetensors").write_bytes(b"12345")
            raise error

    with pytest.raises(OSError, match="1000 bytes") as raised:
        fill(OSError(errno.ENOSPC, "No space left on device"))
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="something else"):
        fill(RuntimeError("something else"))
    assert latest(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_a_checkpoint_that_a_user_moved_and_linked_stays_where_it_is(tmp_path):
    stage, far = tmp_path / "rl", tmp_path / "far"
    shutil.move(write(stage, 1), far)
    (far / "note.txt").write_text("mine")
    place(stage, 1).symlink_to(far)
    assert latest(stage) == place(stage, 1)
    for step in (2, 3, 4):
        write(stage, step)
    assert sorted(path.name for path in stage.iterdir()) == ["000003", "000004"]
    assert is_complete(far)
    assert (far / "note.txt").read_text() == "mine"
