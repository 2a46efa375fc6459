"""The choice of vLLM's model runner and of speculative decoding."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from temper.rollout.engines.config import EngineConfig, Runner
from temper.rollout.engines.runners.choice import RunnerName, choose_runner, speculative_config


@pytest.mark.parametrize(
    ("wanted", "records_pipeline", "triton", "runner"),
    [
        ("auto", False, False, "v1"),
        ("v1", False, True, "v1"),
        ("auto", False, True, "v2"),
        ("v2", False, True, "v2"),
        ("auto", True, True, "v1"),
    ],
)
def test_the_first_runner_serves_where_the_second_can_not(
    wanted: Runner, records_pipeline: bool, triton: bool, runner: RunnerName
) -> None:
    assert choose_runner(wanted, records_pipeline=records_pipeline, triton=triton) == runner


def test_the_second_runner_is_refused_where_it_can_not_serve() -> None:
    with pytest.raises(ValueError, match="runner=v2.*Triton"):
        choose_runner("v2", triton=False)
    with pytest.raises(ValueError, match="runner=v2.*router_replay"):
        choose_runner("v2", records_pipeline=True, triton=True)


def model_with(directory: Path, *names: str) -> Path:
    """A model of two layers by its name alone, with tensors of these names."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"num_hidden_layers": 2}), encoding="utf-8")
    save_file({name: torch.zeros(1) for name in names}, directory / "model.safetensors")
    return directory


def test_heads_guess_where_a_model_has_them(tmp_path: Path) -> None:
    own = [
        model_with(tmp_path / "named", "model.layers.1.mlp.weight", "mtp.layers.0.eh_proj.weight"),
        model_with(tmp_path / "behind", "model.layers.1.mlp.weight", "model.layers.2.eh_proj.weight"),
    ]
    none = model_with(tmp_path / "none", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight")
    config = EngineConfig(speculation="mtp", draft_tokens=2)
    for model in own:
        expected = {"method": "mtp", "model": str(model), "num_speculative_tokens": 2}
        assert speculative_config(config, "v2", model) == expected
        assert speculative_config(replace(config, draft_heads=str(model)), "v2", none) == expected
    with pytest.raises(ValueError, match=r"speculation=mtp.*none.*rollout.engine.draft_heads"):
        speculative_config(config, "v2", none)


def test_speculation_needs_the_second_runner(tmp_path: Path) -> None:
    config = EngineConfig(speculation="ngram")
    drafts = speculative_config(config, "v2", tmp_path)
    assert drafts is not None
    assert (drafts["method"], drafts["num_speculative_tokens"]) == ("ngram_gpu", 3)
    with pytest.raises(ValueError, match="speculation=ngram.*rollout.engine.runner=v2"):
        speculative_config(config, "v1", tmp_path)
    with pytest.raises(ValueError, match="speculation=ngram.*learner.router_replay"):
        speculative_config(config, "v1", tmp_path, record_experts=True)
    assert speculative_config(EngineConfig(), "v2", tmp_path) is None
