"""The order of the tests: the longest files begin first, so that no core waits for them at the end."""

import pytest

LONGEST = (
    "test_system_main_job.py",
    "test_system_main_job_faults.py",
    "test_learner_worker_resume.py",
    "test_learner_worker.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorted, with all other files in their own order."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
