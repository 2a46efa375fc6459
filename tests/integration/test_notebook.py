"""The notebook of the documents runs from its first cell to its last, and its reward rises."""

import os
import sys
from pathlib import Path

import pytest

from temper.orchestrator.api import TrainedRun
from temper.orchestrator.cluster.this_machine import worker_variables

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first_run.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_first_run_of_the_documents_shows_a_rising_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for name, value in worker_variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TEMPER_MODULES", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=3600, kernel_name="python3", resources=resources).execute()
    (folder,) = (tmp_path / "runs").glob("train-*")
    rewards = TrainedRun(folder).metrics.query("stage == 'rl'")["env/math/reward"].tolist()
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5
    assert TrainedRun(folder).metrics["env/math/best_constant"].max() < 0.3
    shown = [output.get("data", {}) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in data for data in shown)
    assert any("iframe" in data.get("text/html", "") for data in shown)
