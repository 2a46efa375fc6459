"""Recording on a full disk or before a failed push, and replays that fail or find non-finite values."""

import asyncio
import io
import json
import math
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import replayed_run, tiny_models
from support.replays import page, replay

from temper.learner.config import LearnerConfig
from temper.learner.saving import HEADERS_BYTES
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.loop.deadline import DeadlineConfig, StuckError
from temper.orchestrator.run.checkpoint import place, size_of, steps
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording import BatchKeeper, StepBatch, read_batch, write_batch
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.tools.debug.replay import answer
from temper.orchestrator.tools.debug.replay.replay import Match, Replay, ReplayRequest
from temper.orchestrator.tools.debug.replay.tokens import OneToken, TokensCompared
from temper.orchestrator.tools.debug.replay.training import deadlines_of
from temper.rollout.trajectory import Turn, WeightVersion
from temper.rollout.weights.delivery import Push

LAST = 3


class FailingRollouts(replayed_run.Rollouts):
    """Its engines can't load the weights of the third step."""

    async def load_weights(self, push: Push) -> WeightVersion:
        if push.manifest.weight_version.step == LAST:
            raise OSError("an engine can't read them")
        return await super().load_weights(push)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose third push fails, with a checkpoint of the second step."""
    root = tmp_path_factory.mktemp("failed")
    reserved: list[int] = []
    asked = Trainer.reserved_bytes

    def noted(self: Trainer, folder: Path) -> int:
        reserved.append(asked(self, folder))
        return reserved[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayed_run, "Rollouts", FailingRollouts)
        patch.setattr(Trainer, "reserved_bytes", noted)
        with pytest.raises(OSError, match="an engine can't read them"):
            replayed_run.train(root / "run", tiny_models.nemotron_h(root / "model"))
    (root / "reserved.json").write_text(json.dumps(reserved))
    return RunDir(root / "run")


@pytest.fixture(scope="module")
def found(run: RunDir) -> Replay:
    return replay(run, str(LAST))


def test_a_step_whose_push_failed_is_replayed_and_room_for_checkpoints_is_kept(run: RunDir, found: Replay) -> None:
    assert steps(run.checkpoints("rl")) == [2, LAST]
    assert list(run.batch_files("rl")) == [1, 2, LAST]
    assert found.weights is not None
    assert (found.differs, found.weights.unequal) == (False, [])
    reserved = json.loads((run.root.parent / "reserved.json").read_text())
    saved = size_of(place(run.checkpoints("rl"), 2))
    assert len(reserved) >= LAST
    assert all(saved <= one <= saved + 2 * HEADERS_BYTES for one in reserved), (reserved, saved)


def test_a_batch_that_can_not_be_recorded_at_a_fault_does_not_hinder_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = BatchKeeper.keep

    async def keep(self: BatchKeeper, step: int, write: Callable[[Path], Awaitable[object]]) -> None:
        if step == LAST:
            raise RuntimeError("it can't be packed")
        await kept(self, step, write)

    monkeypatch.setattr(BatchKeeper, "keep", keep)
    monkeypatch.setattr(replayed_run, "Rollouts", FailingRollouts)
    with pytest.raises(OSError, match="an engine can't read them"):
        replayed_run.train(tmp_path / "run", tiny_models.nemotron_h(tmp_path / "model"))
    assert steps(RunDir(tmp_path / "run").checkpoints("rl")) == [2, LAST]


def test_batches_that_no_checkpoint_needs_make_room_before_one_is_written_and_where_that_is_refused(
    tmp_path: Path,
) -> None:
    folder = RunDir(tmp_path / "other")
    folder.open()
    keeper, there = BatchKeeper(folder, "rl", count=2, after=6), list[list[int]]()
    assert [step for step in range(5, 10) if keeper.due(step)] == [7, 8]

    async def refused(path: Path) -> None:
        there.append(list(folder.batch_files("rl")))
        folder.batch_file("rl", 5).touch()  # its checkpoint is already deleted
        raise OSError("no space")

    for step in (1, 3, 4):
        folder.batch_file("rl", step).touch()
    with pytest.raises(OSError, match="no space"):
        asyncio.run(keeper.keep(7, refused))
    assert there == [[1]]
    assert list(folder.batch_files("rl")) == [1]
    assert not keeper.due(8)
    folder.close()


def with_experts(batch: StepBatch, experts: int) -> StepBatch:
    """Return a batch with random experts for each token of a turn, and none (-1) for the last token."""
    rng = np.random.default_rng(0)

    def chosen(turn: Turn) -> Turn:
        ids = len(turn.context_ids) + len(turn.sampled_ids)
        drawn = rng.integers(0, experts, size=(ids, 2, 3), dtype=np.int16)
        drawn[0], drawn[-1] = experts - 1, -1
        return replace(turn, experts=drawn)

    groups = [
        replace(
            group,
            trajectories=tuple(replace(one, turns=tuple(map(chosen, one.turns))) for one in group.trajectories),
        )
        for group in batch.groups
    ]
    return replace(batch, groups=groups)


def choices(batch: StepBatch) -> Sequence[Any]:
    turns = [turn for one in batch.answers for turn in one.turns]
    return [None if turn.experts is None else (turn.experts.dtype, turn.experts.tolist()) for turn in turns]


@pytest.mark.parametrize(("experts", "kind"), [(128, np.uint8), (255, np.uint8), (256, np.int16), (512, np.int16)])
def test_expert_choices_take_a_byte_each_where_they_fit(run: RunDir, tmp_path: Path, experts: int, kind: type) -> None:
    batch = with_experts(read_batch(run.batch_file("rl", 1)), experts)
    path = tmp_path / "a.safetensors"
    assert write_batch(path, batch) == path.stat().st_size
    assert load_file(path)["int16"].dtype == kind
    found = read_batch(path)
    assert choices(found) == choices(batch)
    assert (found.groups, found.trained_with) == (batch.groups, batch.trained_with)
    for one, other in zip(batch.records, found.records, strict=True):
        assert one.place == other.place
        for name in ("logprobs_T", "advantages_T", "factors_T", "mask_reasons_T"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_batch_of_another_format_is_refused(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    batch = read_batch(run.batch_file("rl", 1))
    with monkeypatch.context() as earlier:
        earlier.setattr("temper.orchestrator.session.recording.FORMAT", 2)
        write_batch(path, batch)
    with pytest.raises(ValueError, match="format 2"):
        read_batch(path)


def test_what_ranks_printed_is_kept_where_a_replay_fails(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def dies(*_told: Any, **_also: Any) -> Any:
        os.write(2, b"rank 1: out of memory\n")
        raise RuntimeError("rank 1 died")

    monkeypatch.setattr(answer, "replay_step", dies)
    monkeypatch.setattr(answer, "stop_ray", lambda: None)
    with pytest.raises(RuntimeError, match="rank 1 died"):
        answer.answer_replay(
            run.root, ReplayRequest(step="1"), as_json=True, out=None, scratch=tmp_path, deadline_s=1.0
        )
    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == "rank 1: out of memory\n"
    assert capfd.readouterr().err.endswith(f"{kept}\n")


def test_control_characters_of_a_models_text_do_not_reach_the_terminal(found: Replay) -> None:
    texts = {"env": "math", "key": "a\x1b]0;b\x07", "text": "\x1b[1A", "before": "\x1b[2Jd\u00e9j\u00e0\rvu\n"}
    places = {"place": 0, "row": 0, "token": 4, "ticket": 1, "id": 65}
    token = OneToken(**texts, **places, measures={"factor": (1.0, None)}, size=math.inf)  # type: ignore[arg-type]
    tokens = TokensCompared(tokens=9, unequal=1, largest={"factor": math.inf}, worst=[token])
    text = page(replace(found, compared=[replace(found.compared[0], tokens=tokens)]))
    assert "\\x1b[2Jd\u00e9j\u00e0\\rvu\\n['\\x1b[1A']" in text
    assert "a\\x1b]0;b\\x07" in text
    assert all(each == "\n" or each.isprintable() for each in text), repr(text)


def test_a_step_of_which_nothing_was_recorded_is_not_called_what_the_run_recorded(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.root, tmp_path / "run")
    copy = RunDir(tmp_path / "run")
    batch = read_batch(copy.batch_file("rl", 1))
    write_batch(copy.batch_file("rl", 1), replace(batch, records=[]))
    copy.metrics.unlink()
    again = replay(copy, "1")
    assert again.match is Match.NOTHING
    monkeypatch.setattr(answer, "replay_step", lambda *_told, **_also: again)
    monkeypatch.setattr(answer, "stop_ray", lambda: None)
    asked = ReplayRequest(step="1")
    assert answer.answer_replay(run.root, asked, as_json=False, out=None, scratch=None, deadline_s=None) == 1
    capsys.readouterr()


def test_metrics_are_told_whether_or_not_tokens_were_recorded(found: Replay) -> None:
    one = found.compared[-1]
    assert one.metrics_compared > 5
    assert found.match is Match.SAME
    unlike = replace(one, tokens=None, metrics={"train/loss": (1.5, 2.5)})
    other = replace(found, compared=[*found.compared[:-1], unlike])
    assert other.match is Match.DIFFERS
    assert "train/loss: recorded 1.5, replayed 2.5" in page(other)


def test_a_replay_waits_as_long_as_its_run_and_says_what_makes_it_wait_longer(run: RunDir, tmp_path: Path) -> None:
    assert deadlines_of(RunDir(tmp_path / "none")) == DeadlineConfig()
    shutil.copytree(run.root, tmp_path / "run")
    copy = RunDir(tmp_path / "run")
    copy.config.write_text("deadlines: {start_s: 0.2, files_s: 77.0}\n")
    assert deadlines_of(copy) == DeadlineConfig(start_s=0.2, files_s=77.0)

    async def never(_learner: LearnerConfig) -> TrainerGroup:
        await asyncio.sleep(1000.0)
        raise AssertionError

    def fails(deadline_s: float | None) -> str:
        asked = ReplayRequest(step="1")
        with pytest.raises(StuckError) as said:
            answer.replay_step(copy, asked, start=never, scratch=tmp_path, screen=io.StringIO(), deadline_s=deadline_s)
        return str(said.value)

    assert re.search(r"for 0 s while waiting for the ranks to start; .*--deadline", fails(None))
    assert "for 1 s while" in fails(1.0)
