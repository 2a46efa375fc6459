"""An engine's settings, and the further vLLM settings that users may set."""

import pytest
from support.refusals import refuses

from temper.rollout.engines.config import EngineConfig


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("max_num_seqs", "rollout.engine.max_sequences"),
        ("data_parallel_size", "rollout.workers"),
        ("logprobs_mode", "remove it"),
    ],
)
def test_what_temper_decides_is_no_further_setting(name: str, instead: str) -> None:
    with refuses(f"rollout.engine.extra.{name}", instead):
        EngineConfig(extra={name: 1})


def test_an_engine_has_at_least_one_process() -> None:
    with refuses("rollout.engine.tensor_parallel=0"):
        EngineConfig(tensor_parallel=0)
    assert EngineConfig(tensor_parallel=2, pipeline_parallel=3).processes == 6
