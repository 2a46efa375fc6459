"""A replayed step is bitwise equal to the original, and the replay names changed or damaged inputs."""

import asyncio
import errno
import io
import itertools
import json
import math
import re
import shutil
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from support import tiny_models
from support.plain_rank import plain_ranks
from support.replayed_run import train
from support.replays import page, replay
from unit.rollout.episodes.test_forced_answers import ForcedEngine, played

from temper.learner.batches.builder import build_samples
from temper.learner.engine.saved_state import ADAPTERS_FILE
from temper.learner.losses.config import LossConfig
from temper.learner.models.layer_types import types_of_tensors
from temper.learner.training_state import STATE_FOLDER
from temper.orchestrator.__main__ import main
from temper.orchestrator.run.checkpoint import DamagedCheckpointError
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording import BatchKeeper, StepBatch, read_batch, write_batch
from temper.orchestrator.tools.debug.replay.chain import choose_chain, replayable
from temper.orchestrator.tools.debug.replay.training import Ranks, Start
from temper.orchestrator.tools.debug.replay.weights import compare_stored
from temper.rollout.trajectory import Turn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Eight steps with a checkpoint every second step. Two are kept, each with the batches of the next two steps."""
    root = tmp_path_factory.mktemp("replayed")
    model = tiny_models.nemotron_h(root / "model")
    return train(root / "run", model, "rl.steps=8", "checkpoints.batches=2")


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(root.rglob("*")) if p.is_file()}


def test_an_undisturbed_step_differs_by_nothing_and_the_run_is_only_read(run: RunDir) -> None:
    before, screen = content(run.root), io.StringIO()
    found = replay(run, "8", screen=screen)
    assert content(run.root) == before
    (begins,) = (line for line in screen.getvalue().splitlines() if line.startswith("rl/8: "))
    assert [int(number) for number in re.findall(r"\d+", begins.rpartition(",")[2])] == [7, 8, 8]  # of 8 steps
    assert [one.step for one in found.compared] == [7, 8]
    for one in found.compared:
        assert one.tokens is not None
        assert (one.tokens.tokens > 50, one.tokens.unequal, one.metrics) == (True, 0, {})
        assert one.tokens.largest == {"logprob": 0.0, "advantage": 0.0, "factor": 0.0}
    assert found.weights is not None
    assert (found.weights.tensors > 40, found.weights.unequal, found.differs) == (True, [], False)
    batch = read_batch(run.batch_file("rl", 8))
    factors = np.concatenate([record.factors_T for record in batch.records])
    assert len(set(factors.tolist())) > 10  # the engine's log-probabilities had an effect


def test_only_steps_that_a_checkpoint_leads_to_are_kept_and_the_others_are_refused_with_the_nearest(
    run: RunDir,
) -> None:
    assert {step: chain.base for step, chain in replayable(run)["rl"].items()} == {1: 0, 2: 0, 7: 6, 8: 6}
    assert set(run.batch_files("rl")) == {1, 2, 7, 8}
    with pytest.raises(ValueError, match=r"(?s)step 3 .* 2 and 7; checkpoints\.batches .*checkpoints\.keep"):
        choose_chain(run, "3")
    with pytest.raises(ValueError, match=" 8"):
        choose_chain(run, "rl/9")
    with pytest.raises(ValueError, match="stage sft.* rl"):
        choose_chain(run, "sft/2")


def test_a_checkpoint_or_a_batch_that_is_gone_is_named(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "run")
    copy = RunDir(tmp_path / "run")
    copy.batch_file("rl", 7).unlink()
    with pytest.raises(ValueError, match="step 7.*step 6"):
        choose_chain(copy, "8")
    damaged = copy.checkpoints("rl") / "000006" / "config.json"
    damaged.write_text(damaged.read_text() + " ")
    shutil.copy(run.batch_file("rl", 7), copy.batch_file("rl", 7))
    with pytest.raises(DamagedCheckpointError, match="config.json"):
        choose_chain(copy, "8")
    shutil.rmtree(copy.checkpoints("rl") / "000006")
    with pytest.raises(ValueError, match=" 2"):
        choose_chain(copy, "8")


def test_a_learning_rate_moves_the_weights_as_adamw_says(run: RunDir, tmp_path: Path) -> None:
    """The first step in float64: w - lr g / (|g| + eps), Loshchilov and Hutter, algorithm 2 with t = 1, 2019."""
    found = replay(run, "1", "rl.optim.learning_rate=9e-4")
    assert not found.differs
    assert found.changed is not None
    assert found.changed.tokens.unequal == 0  # nothing else may differ in a first step
    assert found.changed.metrics == {"learning_rate": (3e-4, 9e-4)}
    state, chain = found.changed.effects, choose_chain(run, "1")
    for kind in ("embedding", "mamba", "attention", "mlp", "norm"):
        moved, gradient = state.weights[kind].as_json(), state.gradients[kind].as_json()
        assert moved["changed"] == pytest.approx(3 * (moved["recorded"] or 0.0), rel=1e-4)
        assert moved["cosine"] == pytest.approx(1.0, abs=1e-7)
        assert gradient["difference"] == 0.0
        assert (gradient["recorded"] or 0.0) > 0.0

    async def trained() -> Path:
        batch = read_batch(run.batch_file("rl", 1))
        ranks = Ranks(plain_ranks, scratch=tmp_path, note=lambda text: None, deadline_s=60.0)
        try:
            return (await ranks.train(Start(model=chain.model, has_state=False), [batch]))[1]
        finally:
            await ranks.close()

    after = asyncio.run(trained())
    before, now = (load_tensors(place / "model.safetensors") for place in (chain.model, after))
    moments = load_tensors(after / "learner" / "optimizer-00000.safetensors")
    change = {name: (now[name].double() - before[name].double()).norm().item() ** 2 for name in now}
    gradients = {
        name.removeprefix("exp_avg/"): moment.double() / (1 - 0.9)
        for name, moment in moments.items()
        if name.startswith("exp_avg/")
    }
    by_kind: dict[str, float] = {}
    for name, kind in types_of_tensors(gradients).items():
        step = 3e-4 * gradients[name] / (gradients[name].abs() + 1e-8)
        by_kind[kind] = by_kind.get(kind, 0.0) + step.norm().item() ** 2
    assert sum(by_kind.values()) == pytest.approx(sum(change.values()), rel=1e-4)
    assert by_kind.keys() < state.weights.keys()
    for kind, squares in by_kind.items():
        assert state.weights[kind].as_json()["recorded"] == pytest.approx(math.sqrt(squares), rel=1e-4)


def edited(run: RunDir, to: Path, change: Callable[[StepBatch], StepBatch], *, step: int) -> RunDir:
    """Copy a run and change values in the record of a step."""
    shutil.copytree(run.root, to)
    copy = RunDir(to)
    path = copy.batch_file("rl", step)
    write_batch(path, change(read_batch(path)))
    return copy


def with_behaviour(batch: StepBatch, change: Callable[[np.ndarray], object], places: Collection[int]) -> StepBatch:
    """Return a batch after a change of the engine's log-probabilities in the turns of these answers."""

    def changed(turn: Turn) -> Turn:
        logprobs_T = turn.logprobs_T.copy()
        change(logprobs_T)
        return replace(turn, logprobs_T=logprobs_T)

    answers = iter(
        replace(answer, turns=tuple(map(changed, answer.turns))) if place in places else answer
        for place, answer in enumerate(batch.answers)
    )
    groups = [
        replace(group, trajectories=tuple(itertools.islice(answers, len(group.trajectories)))) for group in batch.groups
    ]
    return replace(batch, groups=groups)


@pytest.mark.parametrize(("array", "measure"), [("logprobs", "logprob"), ("behaviour", "factor")])
def test_one_log_probability_that_was_changed_is_named_by_its_token(
    run: RunDir, tmp_path: Path, array: str, measure: str
) -> None:
    batch = read_batch(run.batch_file("rl", 8))
    samples = build_samples(batch.trained_with.loss, batch.groups)
    record, trained = next(
        (one, token)
        for one in batch.records
        for token, factor in enumerate(one.factors_T)
        if 0 < factor < 1.9 and len(batch.answers[one.place].turns) == 1
    )
    sample = samples[record.place]
    position = int(np.flatnonzero(sample.trained_T)[trained])
    (turn,) = batch.answers[record.place].turns

    def add(values: np.ndarray, entry: int) -> np.ndarray:
        values[entry] += np.float32(1e-4)
        return values

    def flip(batch: StepBatch) -> StepBatch:
        if array == "behaviour":
            return with_behaviour(
                batch, lambda values: add(values, position - len(turn.context_ids)), places=[record.place]
            )
        other = replace(record, logprobs_T=add(record.logprobs_T.copy(), trained))
        return replace(batch, records=[other if one.place == record.place else one for one in batch.records])

    copy = edited(run, tmp_path / "run", flip, step=8)
    found = replay(copy, "8")
    assert found.differs
    assert found.compared[-1].tokens is not None
    named = [one for one in found.compared[-1].tokens.worst if measure in one.measures]
    assert (named[0].place, named[0].token, named[0].id) == (record.place, position, int(sample.ids[position]))
    assert named[0].text == chr(int(sample.ids[position])) or named[0].text
    assert named[0].link == f"#file=rl-8&row={record.place}&token={position}&colour=gap"
    said = page(found)
    assert f"math {batch.answers[record.place].task.key} row {record.place}" in said
    assert f"{named[0].link}" in said
    assert "rl/8, trained again from step 6, differs" in said
    if array == "logprobs":
        assert found.compared[-1].tokens.unequal == 1
        assert found.compared[-1].tokens.largest["logprob"] == pytest.approx(1e-4, rel=1e-2)


def test_a_record_that_is_cut_off_is_refused(run: RunDir, tmp_path: Path) -> None:
    copy = edited(run, tmp_path / "run", lambda batch: batch, step=8)
    arrays = load_file(copy.batch_file("rl", 8))
    save_file(arrays | {"int32": arrays["int32"][:-1]}, copy.batch_file("rl", 8))
    with pytest.raises(ValueError, match=r"rl-8\.safetensors.*int32"):
        replay(copy, "8")
    path = copy.batch_file("rl", 7)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"rl-7\.safetensors"):
        replay(copy, "8")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("rl.group_size=4", "--set rl.group_size=4"),
        ("rollout.limits.turn_tokens=9", "rollout.limits.turn_tokens"),
        ("learner.transport=broadcast", "learner.transport"),
        ("rl.optim.kind=muon", "--set rl.optim.kind=muon"),
        ("learner.lora.rank=4", "--set learner.lora.rank=4"),
        ("learner.bf16=true", "--set learner.bf16=true"),
        ("rl.optim.learning_rat=1", "learning_rate"),
        ("rl.loss.clip_high=-1", "clip_high"),
        ("sft.steps=3", "--set sft.steps=3"),
        ("speed=3", "--set speed=3"),
        ("learner.threads", "--set learner.threads "),
    ],
)
def test_a_setting_that_no_replay_is_about_is_refused_with_a_reason(run: RunDir, given: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replay(run, "8", given)


def test_another_way_to_compute_the_same_differs_in_last_digits_only(run: RunDir) -> None:
    found = replay(run, "7", "learner.shared_prompts=false", "learner.micro_batch_tokens=64")
    assert not found.differs
    assert found.changed is not None
    assert 0 < found.changed.tokens.largest["logprob"] < 1e-5
    for moved in found.changed.effects.gradients.values():
        assert 0 < (moved.as_json()["relative"] or 0.0) < 1e-4


def test_a_first_step_in_bfloat16_begins_with_the_same_weights(run: RunDir) -> None:
    found = replay(run, "1", "learner.bf16=true", "learner.zero_stage=1")
    assert not found.differs
    assert found.changed is not None
    assert 1e-4 < found.changed.tokens.largest["logprob"] < 0.5
    assert found.changed.effects.left_out == []
    said = page(found)
    assert "layer 2 (attention)" in said
    assert "rl/1, trained again from step 0, matches" in said


def test_another_loss_changes_what_it_is_about(run: RunDir) -> None:
    found = replay(run, "7", "rl.loss.importance_cap=1.05", shown=3)
    assert found.changed is not None
    assert found.changed.tokens.largest["logprob"] == 0.0
    assert found.changed.tokens.largest["factor"] > 0.05
    capped = [one.measures["factor"] for one in found.changed.tokens.worst]
    assert len(capped) == 3
    assert all(float(now or 0) == pytest.approx(1.05) and float(then or 0) > 1.05 for then, now in capped)


def test_the_command_lists_steps_and_refuses_what_has_no_step(
    run: RunDir, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["debug", "replay", str(run.root)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # from the beginning, and from the checkpoint of step 6
    for wrong in ([str(run.root), "--step", "4"], [str(tmp_path)], [str(run.root), "--set", "learner.threads=2"]):
        assert main(["debug", "replay", *wrong]) == 2


def test_distillation_is_replayed_with_its_teacher_and_refused_without(tmp_path: Path) -> None:
    model, teacher = tiny_models.qwen3(tmp_path / "model"), tiny_models.llama(tmp_path / "teacher")
    run = train(tmp_path / "run", model, f"distill.teacher={teacher}", "distill.steps=2", stage="distill")
    found = replay(run, "2")
    assert not found.differs
    assert found.weights is not None
    assert found.compared[0].tokens is not None
    batch = read_batch(run.batch_file("distill", 1))
    assert len({value for record in batch.records for value in record.advantages_T.tolist()}) > 20
    teacher.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="teacher"):
        replay(run, "1")


def recorded(batch: StepBatch, *, leave: int = 0) -> Callable[[Path], Awaitable[object]]:
    async def write(path: Path) -> None:
        write_batch(path, batch, leave=leave)

    return write


def test_where_a_batch_can_not_be_written_none_is_due_before_the_next_checkpoint(run: RunDir, tmp_path: Path) -> None:
    folder, batch = RunDir(tmp_path / "other"), read_batch(run.batch_file("rl", 7))
    folder.open()
    keeper = BatchKeeper(folder, "rl", count=2, after=6)
    assert keeper.due(7)
    with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
        asyncio.run(keeper.keep(7, recorded(batch, leave=2**62)))
    assert folder.batch_files("rl") == {}
    assert not keeper.due(8)
    keeper.saved(8)
    assert keeper.due(9)
    assert keeper.due(10)
    assert not keeper.due(11)
    asyncio.run(keeper.keep(9, recorded(replace(batch, step=9))))
    assert list(folder.batch_files("rl")) == [9]
    folder.close()
    assert not BatchKeeper(folder, "rl", count=0, after=6).due(7)


def far_away(batch: StepBatch) -> StepBatch:
    """Make the sum of all logprob differences overflow."""
    return with_behaviour(batch, partial(filled, value=-1e38), places=range(len(batch.answers)))


def unknown(batch: StepBatch) -> StepBatch:
    return with_behaviour(batch, partial(filled, value=math.nan), places=range(len(batch.answers)))


def filled(values: np.ndarray, value: float) -> None:
    values[np.isfinite(values)] = np.float32(value)


def test_a_metric_that_is_infinite_is_what_the_file_has_as_null(run: RunDir, tmp_path: Path) -> None:
    copy = edited(run, tmp_path / "run", far_away, step=8)
    rows = [json.loads(line) for line in copy.metrics.read_text().splitlines()]
    first = replay(copy, "8").compared[-1]
    infinite = [name for name, (then, now) in first.metrics.items() if math.isfinite(then) and not math.isfinite(now)]
    assert infinite
    for row in rows:
        row |= dict.fromkeys(infinite) if (row["stage"], row["step"]) == ("rl", 8) else {}
    copy.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = replay(copy, "8").compared[-1]
    assert again.metrics_compared == first.metrics_compared
    assert [name for name in infinite if name in again.metrics] == []


def test_of_a_step_that_is_skipped_no_gradient_is_told(run: RunDir, tmp_path: Path) -> None:
    copy = edited(run, tmp_path / "run", unknown, step=8)
    found = replay(copy, "8", "rl.optim.learning_rate=1e-5")
    assert found.compared[-1].metrics["train/skipped"] == (0.0, 1.0)
    assert found.changed is not None
    assert found.changed.effects.gradients == {}
    whole = replay(run, "8", "rl.optim.learning_rate=1e-5")
    assert whole.changed is not None
    assert whole.changed.effects.gradients


def test_adapters_are_compared_beside_the_weights_that_have_them_merged(run: RunDir, tmp_path: Path) -> None:
    checkpoint = run.checkpoints("rl") / "000008"
    one, other = tmp_path / "one", tmp_path / "other"
    for place, value in ((one, 1.0), (other, 1.0 + 2**-20)):
        shutil.copytree(checkpoint, place, ignore=shutil.ignore_patterns("manifest.json"))
        adapter = {"backbone.layers.0.mixer.in_proj.lora_A.default.weight": torch.full((2, 3), value)}
        save_tensors(adapter, place / STATE_FOLDER / ADAPTERS_FILE)
    (found,) = compare_stored(one, other).unequal
    assert (found.layer, found.type, found.entries, found.unequal) == ("layer 0", "adapter", 6, 6)
    assert found.largest == 2**-20


@pytest.mark.slow
def test_a_step_of_two_ranks_is_trained_again_by_two_to_the_last_bit_and_by_one_up_to_rounding(tmp_path: Path) -> None:
    """With partitioned parameters. `tests/integration/test_replay.py` has ranks that hold all of them."""
    model = tiny_models.nemotron_h(tmp_path / "model")
    told = [
        "learner.ranks=2",
        "learner.zero_stage=3",
        "sft.optim.kind=adamw",
        "rl.steps=4",
        "rl.updates_per_step=2",
    ]
    run = train(tmp_path / "run", model, *told)
    found = replay(run, "4", "learner.ranks=1", "learner.zero_stage=0")
    assert not found.differs
    assert [one.step for one in found.compared] == [3, 4]
    assert all(one.tokens is not None and one.tokens.tokens > 50 for one in found.compared)
    assert found.weights is not None
    assert found.weights.unequal == []
    assert found.weights.tensors > 40
    assert found.changed is not None
    assert found.changed.tokens.largest["logprob"] < 1e-4
    assert found.changed.effects.gradients == {}  # two updates
    assert all((moved.as_json()["cosine"] or 0.0) > 0.99 for moved in found.changed.effects.weights.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "sets"),
    [
        (("learner.bf16=true", "learner.zero_stage=1"), ("rl.optim.learning_rate=1e-5",)),
        (("learner.lora.rank=4",), ("rl.optim.learning_rate=1e-5",)),
        (("learner.lora.rank=4", "learner.bf16=true", "learner.zero_stage=2"), ("rl.optim.learning_rate=1e-5",)),
        (("rl.loss.kl_coefficient=0.1", "rl.epochs=2"), ("rl.loss.kl_coefficient=0.2",)),
    ],
)
def test_in_bfloat16_with_adapters_or_with_a_reference_a_step_is_trained_again_to_the_last_bit(
    tmp_path: Path, told: tuple[str, ...], sets: tuple[str, ...]
) -> None:
    model = tiny_models.nemotron_h(tmp_path / "model")
    run = train(tmp_path / "run", model, *told, "sft.optim.kind=adamw", "rl.steps=4")
    found = replay(run, "4", *sets)
    assert not found.differs
    assert all(one.tokens is not None and one.tokens.tokens > 50 for one in found.compared)
    assert found.weights is not None
    assert found.weights.unequal == []
    assert found.changed is not None
    assert any(moved.as_json()["difference"] for moved in found.changed.effects.weights.values())
    assert all(found.changed.effects.entries.values())


def test_a_record_gives_the_samples_of_forced_answers_again(run: RunDir, tmp_path: Path) -> None:
    group = played(ForcedEngine({None: "15", 6: "7", 10: "15"}), samples=2)
    other = played(ForcedEngine({None: "3", 6: "7", 10: "3"}), samples=2)
    groups = [replace(group, trajectories=(*group.trajectories, *other.trajectories))]
    batch = replace(read_batch(run.batch_file("rl", 8)), groups=groups, records=[])
    write_batch(tmp_path / "batch.safetensors", batch)
    kept = read_batch(tmp_path / "batch.safetensors")
    loss = LossConfig()
    assert build_samples(loss, kept.groups) == build_samples(loss, groups)
    assert len(build_samples(loss, groups)) == 4 + 8
