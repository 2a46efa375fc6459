"""A store that tracker tests share, and trackers that send often."""

import pytest

from temper.orchestrator.tracking import sending


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shared local store, because its creation takes seconds. Each test has its own experiment."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "POLL_S", 0.5)
