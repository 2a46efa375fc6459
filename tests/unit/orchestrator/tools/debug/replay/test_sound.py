"""What a replay must not call equal where it is not, nor different where it is as recorded: numbers that are not finite,
steps that were skipped, and adapters."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.replayed_run import train
from unit.orchestrator.tools.debug.replay.test_replaying import edited, replay

from temper.learner.engine.deepspeed_engine import ADAPTERS_FILE
from temper.learner.training_state import STATE_FOLDER
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.debug.replay.page import furthest_layers
from temper.orchestrator.tools.debug.replay.weights import Moved, stored_compared


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Four steps, with a checkpoint at each second one."""
    root = tmp_path_factory.mktemp("replayed")
    return train(root / "run", tiny_models.nemotron_h(root / "model"), "rl.steps=4", "checkpoints.batches=2")


def far_away(arrays: dict[str, np.ndarray]) -> None:
    """Let the sum of all gaps overflow."""
    behaviour = arrays["behaviour"]
    behaviour[np.isfinite(behaviour)] = np.float32(-1e38)


def unknown(arrays: dict[str, np.ndarray]) -> None:
    arrays["behaviour"][np.isfinite(arrays["behaviour"])] = np.nan


def test_a_metric_that_is_infinite_is_what_the_file_has_as_null(run: RunDir, tmp_path: Path) -> None:
    copy = edited(run, tmp_path / "run", far_away, step=4)
    rows = [json.loads(line) for line in copy.metrics.read_text().splitlines()]
    first = replay(copy, "4").compared[-1]
    infinite = [name for name, (then, now) in first.metrics.items() if math.isfinite(then) and not math.isfinite(now)]
    assert infinite
    for row in rows:
        row |= dict.fromkeys(infinite) if (row["stage"], row["step"]) == ("rl", 4) else {}
    copy.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = replay(copy, "4").compared[-1]
    assert again.metrics_compared == first.metrics_compared
    assert [name for name in infinite if name in again.metrics] == []


def test_of_a_step_that_is_skipped_no_gradient_is_told(run: RunDir, tmp_path: Path) -> None:
    copy = edited(run, tmp_path / "run", unknown, step=4)
    found = replay(copy, "4", "rl.optim.learning_rate=1e-5")
    assert found.compared[-1].metrics["train/skipped"] == (0.0, 1.0)
    assert found.changed is not None
    assert found.changed.effects.gradients == {}
    whole = replay(run, "4", "rl.optim.learning_rate=1e-5")
    assert whole.changed is not None
    assert whole.changed.effects.gradients


def test_adapters_are_compared_beside_the_weights_that_have_them_merged(run: RunDir, tmp_path: Path) -> None:
    checkpoint = run.checkpoints("rl") / "000004"
    one, other = tmp_path / "one", tmp_path / "other"
    for place, value in ((one, 1.0), (other, 1.0 + 2**-20)):
        shutil.copytree(checkpoint, place)
        adapter = {"backbone.layers.0.mixer.in_proj.lora_A.default.weight": torch.full((2, 3), value)}
        save_file(adapter, place / STATE_FOLDER / ADAPTERS_FILE)
    assert load_file(one / "model.safetensors").keys() == load_file(other / "model.safetensors").keys()
    (found,) = stored_compared(one, other).unequal
    assert (found.layer, found.type, found.entries, found.unequal) == ("layer 0", "adapter", 6, 6)
    assert found.largest == 2**-20


def test_a_layer_that_begins_to_move_is_shown_before_any_that_moves_otherwise() -> None:
    still, small, large = Moved(), Moved(), Moved()
    still.add(torch.zeros(2), torch.ones(2))
    small.add(torch.ones(2), torch.full((2,), 1.1))
    large.add(torch.ones(2), torch.full((2,), 4.0))
    assert furthest_layers({"small": small, "still": still, "large": large}) == ["still", "large", "small"]
