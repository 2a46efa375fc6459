"""An engine's settings, and the further vLLM settings that users may set."""

import pytest

from temper.rollout.engines.config import EngineConfig


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("max_num_seqs", ".*rollout.engine.max_sequences"),
        ("data_parallel_size", ".*rollout.workers"),
        ("logprobs_mode", "can't be set"),
    ],
)
def test_what_temper_decides_is_no_further_setting(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"rollout.engine.extra.{name} {why}"):
        EngineConfig(extra={name: 1})


def test_an_engine_has_at_least_one_process() -> None:
    with pytest.raises(ValueError, match="tensor_parallel=0 and pipeline_parallel=1"):
        EngineConfig(tensor_parallel=0)
    assert EngineConfig(tensor_parallel=2, pipeline_parallel=3).processes == 6
