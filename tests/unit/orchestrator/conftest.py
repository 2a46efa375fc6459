"""Fixtures that several folders share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.orchestrator.run.folder import RunDir


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunDir]:
    """The open run folder `job`."""
    folder = RunDir(tmp_path / "job")
    folder.open()
    yield folder
    folder.close()
