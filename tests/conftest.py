"""The order of the tests, the longest files first, so that no core waits for them at the end; and how their threads wait."""

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads of torch that spin while they wait take the cores from the processes of the other file. Read as torch loads."""
LONGEST = (
    "test_system_faults_driver.py",
    "test_system_main_job.py",
    "test_system_main_job_ranks.py",
    "test_system_families.py",
    "test_system_main_job_submitted.py",
    "test_learner_worker_resume.py",
    "test_learner_worker.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorted, with all other files in their own order."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
