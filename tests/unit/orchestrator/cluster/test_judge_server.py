"""The process of a judge's server that cannot start."""

from pathlib import Path

import pytest

from temper.envs.core.process import JudgeDied
from temper.orchestrator.cluster.judge_server import run_server


def test_a_server_that_ends_is_an_error_with_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(JudgeDied, match="status 2") as raised:
        run_server([str(tmp_path / "nowhere")], "key", tmp_path / "judge.log")
    assert str(tmp_path / "nowhere") in str(raised.value)
