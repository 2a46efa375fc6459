"""Lines on a terminal: they break at spaces, and paths are short."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from temper.orchestrator.run.screen import fit_text, print_text

TEXTS = (
    "[0:10] rl 3/40 | code 0.125 math 0.250 | loss 0.0123 | 1,234 tokens/s | 12:34 left, the limits are below-zero numbers",
    "warning       rollout.limits   turn_tokens=4096 is more than the 2,048 tokens that model.max_model_len leaves for it",
    "        -> set learner.micro_batch_tokens=1024, or use --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G instead",
    "error: /some/very/long/path/of/another/folder/that/is/longer/than/sixty/characters/config.yaml is missing; name a file",
)


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("text", TEXTS)
def test_lines_break_at_spaces_only(text: str, width: int) -> None:
    lines = fit_text(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert lines[0].startswith(text[:6])


def test_paths_of_the_current_folder_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit_text(f"log: {tmp_path}/runs/demo/driver.log", 200) == "log: runs/demo/driver.log"
    assert fit_text(f"runs_dir='{tmp_path.parent}/x'", 200) == "runs_dir='../x'"
    kept = f"POST /v1/messages, /usr/bin/vi, sqlite:///{tmp_path}/mlflow.db, 3/40, {tmp_path}"
    assert fit_text(kept, 1000) == kept


def test_files_and_pipes_get_whole_lines() -> None:
    out = io.StringIO()
    text = f"{Path.cwd()}/runs/demo: " + "word " * 40 + "[red] :smile:"
    print_text(Console(file=out, width=60), text)
    assert out.getvalue() == text + "\n"
