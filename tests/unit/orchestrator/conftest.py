"""What tests of several folders begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.orchestrator.run.folder import RunDir


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunDir]:
    """The open folder `job` of a run."""
    folder = RunDir(tmp_path / "job")
    folder.open()
    yield folder
    folder.close()
