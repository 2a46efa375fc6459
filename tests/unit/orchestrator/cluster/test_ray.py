"""Tests of what workers of a cluster are told by their environment."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import pytest
import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from temper.orchestrator.cluster import bundles, ray_cluster
from temper.orchestrator.cluster.ray_cluster import _vllm_level, asks_for_no_token, stop_ray
from temper.orchestrator.cluster.this_machine import IMPORTS_OF_COPY, ROOT
from temper.orchestrator.run.driver import VLLM_LEVEL


def test_workers_are_told_how_much_vllm_logs_but_for_a_job_that_tells_them_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(RAY_JOB_CONFIG_JSON_ENV_VAR, raising=False)
    monkeypatch.delenv(VLLM_LEVEL, raising=False)
    assert _vllm_level() == {}
    monkeypatch.setenv(VLLM_LEVEL, "DEBUG")
    assert _vllm_level() == {VLLM_LEVEL: "DEBUG"}
    monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, json.dumps({"runtime_env": {"env_vars": {"HF_HOME": "/models"}}}))
    assert _vllm_level() == {VLLM_LEVEL: "DEBUG"}
    monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, json.dumps({"runtime_env": {"env_vars": {VLLM_LEVEL: "ERROR"}}}))
    assert _vllm_level() == {}


def test_a_copy_of_the_checkout_is_imported_without_a_link(tmp_path: Path) -> None:
    imports, module = tmp_path / IMPORTS_OF_COPY.relative_to(ROOT), tmp_path / "envs" / "core" / "member.py"
    shutil.copytree(IMPORTS_OF_COPY, imports)
    module.parent.mkdir(parents=True)
    module.touch()
    program = (
        f"import sys; sys.path.insert(0, {str(imports)!r}); import temper.envs.core.member as m; print(m.__file__)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(module)


def test_a_cluster_that_does_not_answer_is_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: answers.wait(10))
    monkeypatch.setattr(ray_cluster, "STOP_S", 0.1)
    began = monotonic()
    monkeypatch.setattr(bundles, "cluster_nodes", lambda: answers.wait(10))
    monkeypatch.setattr(bundles, "TAKEN_S", 0.1)
    stop_ray()
    assert bundles.gpus_taken() == ""
    assert monotonic() - began < 5
    answers.set()


@pytest.mark.parametrize(
    ("mode", "open_to_all"), [("token", False), ("Token", False), ("disabled", True), (None, True)]
)
def test_a_cluster_without_a_token_is_known(
    mode: str | None, open_to_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert asks_for_no_token() is open_to_all
