"""A checkpoint's optimiser state: whole tensors by name, which any number of ranks continues from."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from unit.learner.test_worker import POLICY, STEPS, batch, broken_batch, in_processes, weights_of

from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.engine.saved_state import SHARDS, open_state
from temper.learner.models.loading import map_file_names
from temper.learner.training_state import STATE_FOLDER
from temper.learner.worker import TrainerWorker

DECAY = 0.7
ADAM = OptimConfig(
    learning_rate=2e-3, warmup_steps=2, schedule="linear", weight_decay=0.01, grad_clip=0.5, ema_decay=DECAY
)
MUON = OptimConfig(
    kind="muon", learning_rate=2e-3, muon_learning_rate=0.01, warmup_steps=2, grad_clip=0.05, ema_decay=DECAY
)


def part(
    rank: int, port: int, optim: OptimConfig, config: LearnerConfig, source: str, target: str, first: int, last: int
) -> Any:
    """Steps `first` to `last` from the checkpoint `source`, saved as `target` at the start and at the end.

    Returns losses, and the weights after each step.
    """
    learner = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    learner.load(source, optim=optim, total_steps=STEPS)
    if first:
        learner.restore(source)
        learner.save(f"{target}-start")
    losses, weights = [], []
    for step in range(first, last):
        metrics = learner.train_step(batch(ranks=config.ranks, seed=step).share(learner.rank), loss=POLICY)
        assert metrics["grad_norm"] > optim.grad_clip
        losses.append(metrics["loss"])
        weights.append(weights_of(learner))
    learner.save(target)
    learner.close()
    return losses, weights


def optimizer_state(checkpoint: str) -> dict[str, torch.Tensor]:
    with ExitStack() as stack:
        saved = open_state((Path(checkpoint) / STATE_FOLDER).glob(SHARDS), stack)
        return {name: tensor.join().clone() for name, tensor in saved.items()}


def require_averages(state: dict[str, torch.Tensor], steps: list[dict[str, torch.Tensor]]) -> None:
    """Compare the averages of a state with averages in float64 over the weights after each step."""
    for name, tensor in steps[0].items():
        expected = tensor.double()
        for step in steps[1:]:
            expected = DECAY * expected + (1 - DECAY) * step[name].double()
        assert torch.allclose(state[f"ema/{name}"].double(), expected, rtol=1e-6, atol=1e-7), name


def trained_weights(checkpoint: str) -> dict[str, torch.Tensor]:
    """The float32 weights of a checkpoint by parameter."""
    names = map_file_names(Path(checkpoint))
    files = [load_file(path) for path in Path(checkpoint).glob("*.safetensors")]
    saved = {names[key]: tensor for file in files for key, tensor in file.items()}
    masters = {key: one for key, one in optimizer_state(checkpoint).items() if key.startswith("master/")}
    return saved | {key.removeprefix("master/"): one for key, one in masters.items()}


@pytest.mark.parametrize("optim", [ADAM, pytest.param(MUON, marks=pytest.mark.slow)], ids=["adamw", "muon"])
def test_a_run_continues_on_one_rank_and_on_two_again(folder, optim):
    place = folder / optim.kind
    two = LearnerConfig(ranks=2, zero_stage=2)
    three = LearnerConfig(ranks=2, zero_stage=3)
    one = LearnerConfig()

    def run(config: LearnerConfig, source: str, target: str, first: int, last: int) -> Any:
        arguments = (optim, config, f"{folder}/{source}", f"{place}/{target}", first, last)
        return in_processes(part, ranks=config.ranks, arguments=arguments)[0]

    _, weights = run(two, "model", "a", 0, 2)
    weights += run(one, f"{optim.kind}/a", "b", 2, 3)[1]
    losses, last = run(three, f"{optim.kind}/b", "c", 3, STEPS)
    weights += last
    straight_losses, straight = run(one, "model", "straight", 0, STEPS)
    assert losses == pytest.approx(straight_losses[3:], abs=1e-5)
    for name, tensor in straight[-1].items():
        assert torch.allclose(weights[-1][name], tensor, atol=1e-5), name

    for before, after in (("a", "b-start"), ("b", "c-start")):  # what is read is what was written, bit for bit
        old, new = optimizer_state(f"{place}/{before}"), optimizer_state(f"{place}/{after}")
        assert old.keys() == new.keys()
        assert all(torch.equal(tensor, new[name]) for name, tensor in old.items())
    state = optimizer_state(f"{place}/c")
    parameters = load_file(f"{folder}/model/model.safetensors")
    assert sum(name.startswith(("exp_avg_sq/", "momentum_buffer/")) for name in state) == len(parameters)
    assert any(name.startswith("momentum_buffer/") for name in state) == (optim is MUON)
    assert float(state["step"]) == STEPS
    names = map_file_names(folder / "model")
    require_averages(state, [{names[key]: tensor for key, tensor in step.items()} for step in weights])
    assert not [path for path in folder.rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".pkl")]


def muon_steps(rank: int, port: int, folder: str, config: LearnerConfig) -> dict[str, float]:
    """Steps of Muon, with a broken batch in the middle. The second half again from a checkpoint.

    Returns the metrics of the broken batch.
    """
    learner = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    learner.load(f"{folder}/model", optim=MUON, total_steps=STEPS)
    shares = [batch(ranks=config.ranks, seed=step).share(rank) for step in range(STEPS)]
    checkpoint = f"{folder}/muon-{config.ranks}-{config.zero_stage}"
    for step, share in enumerate(shares[:2]):
        learner.train_step(share, loss=POLICY)
        learner.save(f"{checkpoint}-{step}")
    broken = learner.train_step(broken_batch(ranks=config.ranks).share(rank), loss=POLICY)
    learner.save(checkpoint)
    for share in shares[2:]:
        learner.train_step(share, loss=POLICY)
    learner.save(f"{checkpoint}-end")
    learner.load(checkpoint, optim=MUON, total_steps=STEPS)
    learner.restore(checkpoint)
    for share in shares[2:]:
        learner.train_step(share, loss=POLICY)
    learner.save(f"{checkpoint}-again")
    learner.close()
    return broken


def test_muon_on_partitions_equals_muon_on_one_rank_and_stage_0(folder):
    states = []
    for config in (
        LearnerConfig(zero_stage=1, bf16=True),
        LearnerConfig(zero_stage=1, bf16=True, ranks=2),
        LearnerConfig(zero_stage=2, bf16=True, ranks=2),
        LearnerConfig(zero_stage=3, bf16=True, ranks=2, offload="cpu"),
        LearnerConfig(),
    ):
        for broken in in_processes(muon_steps, ranks=config.ranks, arguments=(str(folder), config)):
            assert broken["skipped"] == 1.0
        checkpoint = f"{folder}/muon-{config.ranks}-{config.zero_stage}"
        state, again = (optimizer_state(f"{checkpoint}-{name}") for name in ("end", "again"))
        assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())
        require_averages(optimizer_state(checkpoint), [trained_weights(f"{checkpoint}-{step}") for step in range(2)])
        states.append(state)
    *halves, plain = states
    for state in halves:
        assert plain.keys() == {name for name in state if not name.startswith("master/")}
    first, last = (load_file(f"{folder}/{name}/model.safetensors") for name in ("model", "muon-1-0-end"))
    for file_name, name in map_file_names(folder / "model").items():
        if f"momentum_buffer/{name}" in plain:
            start = first[file_name]
            moved = last[file_name] - start
            for other in halves:  # passes in bfloat16 differ by 2 %, and by 7 % in one matrix
                assert (other[f"master/{name}"] - start - moved).norm() < 0.1 * moved.norm(), name


def continued(rank: int, port: int, folder: str) -> dict[str, list[dict[str, torch.Tensor] | None]]:
    """The weights of a run and of the same run continued from its middle, for each kind of optimiser state."""
    found: dict[str, list[dict[str, torch.Tensor] | None]] = {}
    kinds = {
        "adam": (ADAM, LearnerConfig()),
        "stage 1": (ADAM, LearnerConfig(zero_stage=1)),
        "stage 2": (ADAM, LearnerConfig(zero_stage=2)),
        "stage 3": (ADAM, LearnerConfig(zero_stage=3)),
        "muon": (MUON, LearnerConfig()),
        "muon, stage 1": (MUON, LearnerConfig(zero_stage=1, bf16=True)),
        "muon, stage 3": (MUON, LearnerConfig(zero_stage=3)),
        "bfloat16": (ADAM, LearnerConfig(zero_stage=2, bf16=True)),
        "bfloat16, stage 1": (ADAM, LearnerConfig(zero_stage=1, bf16=True)),
        "bfloat16, stage 3": (ADAM, LearnerConfig(zero_stage=3, bf16=True)),
    }
    for name, (optim, config) in kinds.items():
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, config)
        checkpoint = f"{folder}/{name}"
        learner.load(f"{folder}/model", optim=optim, total_steps=STEPS)
        for step in range(STEPS):
            if step == 2:
                assert learner.save(checkpoint, beside=True)
            learner.train_step(batch(ranks=1, seed=step).share(learner.rank), loss=POLICY)
        learner.write()  # of what was copied before those steps
        found[name] = [weights_of(learner)]
        learner.load(checkpoint, optim=optim, total_steps=STEPS)
        learner.restore(checkpoint)
        for step in range(2, STEPS):
            learner.train_step(batch(ranks=1, seed=step).share(learner.rank), loss=POLICY)
        found[name].append(weights_of(learner))
        learner.close()
    for config in (LearnerConfig(), LearnerConfig(zero_stage=2), LearnerConfig(zero_stage=3)):
        other = TrainerWorker(rank, 1, "127.0.0.1", port, config)
        for source, target, optim in (("stage 2", "off", replace(ADAM, ema_decay=0.0)), ("off", "on", ADAM)):
            other.load(f"{folder}/{source}", optim=optim, total_steps=STEPS)
            other.restore(f"{folder}/{source}")
            other.train_step(batch(ranks=1, seed=2).share(rank), loss=POLICY)
            other.save(f"{folder}/{target}")
        other.close()
        assert not [name for name in optimizer_state(f"{folder}/off") if name.startswith("ema/")]
        begun = optimizer_state(f"{folder}/on")
        for name, weight in trained_weights(f"{folder}/on").items():
            assert torch.equal(begun[f"ema/{name}"], weight), name
    other = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=2))
    other.load(f"{folder}/bfloat16", optim=ADAM, total_steps=STEPS)
    with pytest.raises(ValueError, match=r"learner\.bf16=true"):
        other.restore(f"{folder}/bfloat16")
    other.needed_bytes = 2**60  # more than any main memory has room for
    assert not other.save(f"{folder}/at once", beside=True)
    assert optimizer_state(f"{folder}/at once")
    other.close()
    return found


def test_every_kind_of_state_continues_bit_for_bit(folder):
    found = in_processes(continued, ranks=1, arguments=(str(folder),))[0]
    for name, (straight, resumed) in found.items():
        assert all(torch.equal(tensor, resumed[key]) for key, tensor in straight.items()), name
