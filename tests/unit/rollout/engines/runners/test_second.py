"""Thinking limits and a push in vLLM's second model runner, with interpreted kernels, so without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiny_models

SCRIPT = Path(tiny_models.__file__).with_name("second_runner.py")
LIMIT_S = 900.0


@pytest.mark.slow
def test_the_second_runner_follows_the_thinking_rule(tmp_path: Path) -> None:
    model = tiny_models.qwen3(tmp_path / "model")
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(model)],
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
