"""Ray: environment and logs of workers, actor failures, free ports, and disconnection from a cluster."""

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic
from urllib.request import proxy_bypass

import pytest
import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError, RayError

from temper.envs.core.process import LearnerDied, WorkerDied
from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster import bundles, head, ray_cluster
from temper.orchestrator.cluster.actors import await_actor, list_nodes
from temper.orchestrator.cluster.head import require_head
from temper.orchestrator.cluster.ray_cluster import (
    SOCKETS,
    WAIT_POLICY,
    SessionLogs,
    _driver_variables,
    _own_sigterm,
    has_open_access,
    ray_base,
    stop_ray,
)
from temper.orchestrator.cluster.run_actors import TUNED, rank_variables
from temper.orchestrator.cluster.this_machine import LOOPBACK, bypass_proxies, free_ports
from temper.orchestrator.run.driver import VLLM_LEVEL


def test_workers_get_the_drivers_variables_but_for_those_of_a_submitted_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RAY_JOB_CONFIG_JSON_ENV_VAR, VLLM_LEVEL, WAIT_POLICY):
        monkeypatch.delenv(name, raising=False)
    assert _driver_variables() == {}
    monkeypatch.setenv(VLLM_LEVEL, "DEBUG")
    assert _driver_variables() == {VLLM_LEVEL: "DEBUG"}
    monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, json.dumps({"runtime_env": {"env_vars": {"HF_HOME": "/models"}}}))
    assert _driver_variables() == {VLLM_LEVEL: "DEBUG"}
    monkeypatch.setenv(WAIT_POLICY, "PASSIVE")
    monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, json.dumps({"runtime_env": {"env_vars": {VLLM_LEVEL: "ERROR"}}}))
    assert _driver_variables() == {WAIT_POLICY: "PASSIVE"}


def test_rays_handler_of_sigterm_does_not_stay_and_its_exit_is_an_interrupt() -> None:
    own = signal.getsignal(signal.SIGTERM)

    @_own_sigterm()
    def init() -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        init()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_cluster_that_does_not_answer_is_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: answers.wait(10))
    monkeypatch.setattr(ray_cluster, "STOP_S", 0.1)
    began = monotonic()
    monkeypatch.setattr(bundles, "cluster_nodes", lambda: answers.wait(10))
    monkeypatch.setattr(bundles, "GPU_QUERY_S", 0.1)
    stop_ray()
    assert bundles.describe_used_gpus() == ""
    assert monotonic() - began < 5
    answers.set()


@pytest.mark.parametrize(
    "address", ["", "ray://10.0.0.1:10001", "http://10.0.0.1:8265", "10.0.0.1", ":6379", "head:port"]
)
def test_an_address_of_another_form_is_a_mistake(address: str) -> None:
    with pytest.raises(ValueError, match="RAY_ADDRESS"):
        require_head(address)


def test_a_head_that_is_gone_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens, or another service took its port: a silent one, or one that closes or speaks first."""
    monkeypatch.setattr(head, "HEAD_S", 0.3)
    began = monotonic()
    with socket.create_server((LOOPBACK, 0)) as silent, socket.create_server((LOOPBACK, 0)) as other:

        def greet() -> None:
            other.accept()[0].sendall(b"220 mail.example ready")

        threading.Thread(target=greet, daemon=True).start()
        ports = [free_ports(1)[0], silent.getsockname()[1], other.getsockname()[1], 70_000]
        for address in (*(f"{LOOPBACK}:{port}" for port in ports), "no-host.invalid:6379"):
            with pytest.raises(ConnectionError, match=f"RAY_ADDRESS={address}"):
                require_head(address)
    assert monotonic() - began < 20
    require_head("local")


@pytest.mark.parametrize("length", [9, 37, 38, 200])
def test_rays_sockets_fit_below_any_temporary_folder(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = "/" + "x" * (length - 1)
    monkeypatch.setattr(tempfile, "tempdir", usual)
    base = ray_base()
    assert base == Path(usual if length <= 37 else "/tmp")
    assert len(f"{base}/ray{SOCKETS}") <= 107


@pytest.mark.parametrize(
    ("mode", "open_to_all"), [("token", False), ("Token", False), ("disabled", True), (None, True)]
)
def test_a_cluster_without_a_token_is_known(
    mode: str | None, open_to_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert has_open_access() is open_to_all


def printed(folder: Path, name: str, text: str, *, age_s: float = 0.0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    os.utime(path, (10**9 - age_s, 10**9 - age_s))
    return path


def test_what_workers_of_the_job_printed_is_copied_and_again_as_it_grows(tmp_path: Path) -> None:
    logs, into = tmp_path / "logs", tmp_path / "ray"
    mine = printed(logs, "worker-aa-02000000-11.out", "begun\n")
    printed(logs, "worker-bb-03000000-12.out", "of another job\n")
    printed(logs, "worker-cc-02000000-13.err", "")
    printed(logs, "gcs_server.out", "of Ray itself\n")
    ours = SessionLogs(folder=logs, job="02000000")
    assert ours.copy_to(into) == ""
    assert [path.name for path in into.iterdir()] == [mine.name]
    mine.write_text("begun\ndied\n", encoding="utf-8")
    assert ours.copy_to(into) == ""
    assert (into / mine.name).read_text(encoding="utf-8") == "begun\ndied\n"
    assert SessionLogs(folder=logs).copy_to(into) == ""
    assert len(list(into.iterdir())) == 2


def test_of_long_files_the_end_is_kept_and_of_many_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "FILE_BYTES", 10)
    monkeypatch.setattr(ray_cluster, "FOLDER_BYTES", 250 + 2 * len(str(tmp_path)))
    logs, into = tmp_path / "logs", tmp_path / "ray"
    for number in range(5):
        printed(logs, f"worker-{number}-01-1.out", "x" * 90 + f"the end {number}\n", age_s=number)
    assert SessionLogs(folder=logs).copy_to(into) == ""
    assert sorted(path.name[7] for path in into.iterdir()) == ["0", "1"]
    text = (into / "worker-0-01-1.out").read_text(encoding="utf-8")
    assert text.endswith("\nthe end 0\n")
    assert "the first 90 bytes of" in text


def test_what_can_not_be_copied_is_told_and_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    printed(logs, "worker-a-01-1.out", "x")
    assert "No such file or directory" in SessionLogs(folder=logs).copy_to(tmp_path / "gone" / "ray")
    assert SessionLogs(folder=tmp_path / "never").copy_to(tmp_path / "ray") == ""
    monkeypatch.setattr(ray_cluster, "COPY_S", -1.0)
    assert "not all of" in SessionLogs(folder=logs).copy_to(tmp_path / "ray")


def test_a_copy_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, into = tmp_path / "logs", tmp_path / "ray"
    printed(logs, "worker-a-01-1.out", "x")

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert "No space left" in SessionLogs(folder=logs).copy_to(into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize(
    "said", [ActorDiedError(), OutOfMemoryError("memory is nearly full"), NodeDiedError("the machine is gone")]
)
def test_however_a_process_ended_that_is_its_death(said: RayError) -> None:
    async def call() -> None:
        raise said

    with pytest.raises(WorkerDied, match="rollout worker 0 died"):
        asyncio.run(await_actor(call(), "rollout worker 0", died=WorkerDied))
    with pytest.raises(LearnerDied, match="rank 1 died"):
        asyncio.run(await_actor(call(), "rank 1", died=LearnerDied))


def test_a_mere_head_holds_no_process_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    offers: dict[str, dict[str, float]] = {"head": {}, "gpus": {"GPU": 8.0}, "cpus": {"CPU": 4.0}}
    found = [{"NodeID": name, "Alive": True, "Resources": offered} for name, offered in offers.items()]
    monkeypatch.setattr(ray, "nodes", lambda: found)
    assert asyncio.run(list_nodes()) == ["head", "gpus", "cpus"]
    assert asyncio.run(list_nodes(hosts=True)) == ["gpus", "cpus"]


def test_ranks_on_gpus_keep_their_tuning_and_have_segments_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", *TUNED):
        monkeypatch.delenv(name, raising=False)
    usual = LearnerConfig(transport="broadcast")
    tuned = {"runtime_env": {"env_vars": TUNED}}
    grown = {"runtime_env": {"env_vars": TUNED | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}}
    assert rank_variables(usual, on_gpus=True) == grown
    assert rank_variables(LearnerConfig(transport="cuda_ipc"), on_gpus=True) == tuned
    assert rank_variables(usual, on_gpus=False) == {}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert rank_variables(usual, on_gpus=True) == tuned
    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "0")
    assert rank_variables(usual, on_gpus=True) == {}


RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_free_and_all_different_and_none_is_given_to_somebody_elses_connection() -> None:
    lowest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < lowest
    for port in ports:
        socket.create_server((LOOPBACK, port)).close()


@pytest.mark.parametrize(
    ("lower", "upper", "direct"),
    [("", "", {LOOPBACK}), ("", "hub.lan", {LOOPBACK, "hub.lan"}), ("*", "", {LOOPBACK, "hub.lan", "other.lan"})],
)
def test_requests_to_this_machine_do_not_go_to_its_proxy(
    lower: str, upper: str, direct: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's jobs, MLflow's pages and the endpoint of agents are on loopback, and their clients would ask the proxy."""
    for name, value in (("http_proxy", "http://127.0.0.1:9"), ("no_proxy", lower), ("NO_PROXY", upper)):
        monkeypatch.setenv(name, value)
    bypass_proxies()
    assert {host for host in (LOOPBACK, "hub.lan", "other.lan") if proxy_bypass(host)} == direct
    before = os.environ["no_proxy"]
    bypass_proxies()
    assert os.environ["no_proxy"] == before
