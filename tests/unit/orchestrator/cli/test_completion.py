"""`temper completion`: what bash makes of the script."""

import contextlib
import shlex
import subprocess
from pathlib import Path

import pytest

from temper.orchestrator.__main__ import main

ASK = 'source "$1"; shift; COMP_WORDS=(temper "$@"); COMP_CWORD=$#; _temper; echo "${COMPREPLY[*]}"'


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, as the command prints it."""
    path = tmp_path_factory.mktemp("shell") / "temper"
    with path.open("w") as file, contextlib.redirect_stdout(file):
        assert main(["completion"]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("st", "status"),
        ("run --dr", "--dry-run"),
        ("status runs/demo --w", "--watch"),
        ("rl configs/demo.yaml rl.loss.error_g", "rl.loss.error_guard="),
        ("fork runs/demo --f", "--from"),
        ("config --explain rl.loss.error_g", "rl.loss.error_guard"),  # as `config` takes it
        ("run configs/demo.yaml envs.math.sha", "envs.math.share="),
        ("run configs/demo.yaml --log-level d", "debug"),
        ("run configs/demo.yaml placement = sh", "shared"),
        ("run configs/demo.yaml placement=sh", "placement=shared"),  # a word as zsh has it
        ("run configs/demo.yaml learner.bf16 =", "true false"),
        ("run configs/demo.yaml name = x", ""),
        ("status rl.st", ""),  # takes no settings
        ("run configs/de", ""),  # left to the shell, which completes files
    ],
)
def test_bash_completes_commands_options_and_settings(words: str, completed: str, script: Path) -> None:
    asked = ["bash", "-c", ASK, "bash", str(script), *shlex.split(words)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == completed.split()
