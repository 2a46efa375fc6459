"""`init`: the first model of a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_models
from unit.learner.engine.test_saved_state import weights, write_checkpoint_with_averages
from unit.orchestrator.session.test_session import Learner, on_a_run

from temper.orchestrator.config.run_config import ModelConfig
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.checkpoint import is_complete
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.init import run_init
from temper.orchestrator.stages.registry import all_stages


def test_a_run_begins_with_the_averages_of_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = write_checkpoint_with_averages(tiny_models.qwen3(tmp_path / "checkpoint"))

    async def begun(run: Run) -> Path:
        return await run_init(run, None, single_instance(all_stages()["init"]))

    def first_model(folder: Path, source: Path) -> Any:
        return on_a_run(folder, Learner(), begun, f"model.path={source}", "model.ema=true")

    target = first_model(tmp_path / "averaging", checkpoint)
    assert is_complete(target)
    assert torch.equal(weights(target)["lm_head.weight"], -weights(checkpoint)["lm_head.weight"])
    with pytest.raises(ValueError, match=r"optim\.ema_decay"):
        first_model(tmp_path / "without", tiny_models.qwen3(tmp_path / "plain"))


def test_the_averages_of_no_checkpoint_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.ema=true"):
        ModelConfig(ema=True)
    with pytest.raises(ValueError, match=r"model\.ema=true"):
        ModelConfig(ema=True, path="runs/demo/checkpoints/rl/000010", end_of_turn=["<end>"])
