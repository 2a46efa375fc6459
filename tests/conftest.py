"""The order of the tests, the longest files first, so that no core waits for them at the end; and how their threads wait."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads of torch that spin while they wait take the cores from the processes of the other file. Read as torch loads."""
LONGEST = (
    "faults/test_driver.py",
    "integration/test_main_job.py",
    "integration/test_families.py",
    "unit/rollout/engines/test_vllm.py",
    "unit/rollout/serving/test_server.py",
    "unit/envs/data/test_hub.py",
    "unit/orchestrator/cli/test_submit.py",
    "unit/learner/test_worker_resume.py",
    "unit/learner/test_worker.py",
)
ROOT = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorted, with all other files in their own order."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
