"""The positions of a model are those that vLLM accepts."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import tiny_models
from transformers import AutoConfig
from vllm import AsyncEngineArgs

from temper.learner.models.shape import longest_sequence, read_shape

ROPE = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA_3 = ROPE | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_position_embeddings": 777},
        {"rope_parameters": ROPE | {"rope_type": "linear"}},
        {"rope_parameters": ROPE | {"rope_type": "dynamic"}},
        {"rope_parameters": ROPE | {"rope_type": "yarn"}},
        {"rope_parameters": LLAMA_3 | {"rope_type": "llama3"}},
        {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"model_max_length": 8192},
    ],
)
def test_positions_are_the_engines(changes: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_models.llama(tmp_path / "model")
    written = json.loads((model / "config.json").read_text())
    kept = {name: value for name, value in (written | changes).items() if value is not None}
    (model / "config.json").write_text(json.dumps(kept))
    accepted = AsyncEngineArgs(model=str(model), dtype="float32").create_model_config().max_model_len
    assert longest_sequence(model) == accepted
    assert read_shape(AutoConfig.from_pretrained(model), parameters=1).positions == accepted
