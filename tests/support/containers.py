"""A container image for tests: `temper-test`, or the one that TEMPER_TEST_IMAGE names. It needs Python 3.10 or later and sh.

For example `docker tag python:3.12-slim temper-test`. Without a network:
`debootstrap --variant=minbase --include=python3 bookworm root && tar -C root -c . | podman import - temper-test`.
"""

import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from temper.envs.catalog import configure_env
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.task import Task
from temper.envs.workspace.container import find_runtime

IMAGE = os.environ.get("TEMPER_TEST_IMAGE", "temper-test")


def require_image() -> str:
    """Return the image. Skip the test if no runtime has it."""
    try:
        find_runtime(IMAGE)
    except EnvironmentFault as fault:
        pytest.skip(f"no container image for tests: {fault}")
    return IMAGE


def in_image(task: Task) -> Task:
    """Return the task of a workspace with the image for tests."""
    options: dict[str, Any] = {"image": require_image()}
    definition = configure_env("workspace", options)
    return replace(task, env=replace(task.env, options=definition.options))


def containers() -> list[str]:
    """Return the names of the workspaces' containers on this machine, of any state."""
    command = [find_runtime(IMAGE), "ps", "--all", "--filter=label=temper", "--format={{.Names}}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split()
