"""A store for all tests of trackers, and trackers that send often."""

import pytest

from temper.orchestrator.tracking import sending


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local store, which takes seconds to make: shared, with an experiment for each test."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "POLL_S", 0.5)
