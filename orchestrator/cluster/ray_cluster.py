"""Ray itself: joining a cluster or starting one on this machine, the logs of its workers, and leaving it."""

import atexit
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray.job_config import JobConfig

from temper.envs.sandbox.seal_probe import MIN_LEVEL_VARIABLE
from temper.orchestrator.cluster.this_machine import HOOK, FrozenPath, import_folders, worker_variables
from temper.orchestrator.run.driver import VLLM_LEVEL

STOP_S = 60.0
FILE_BYTES = 8 * 2**20
"""Of a longer file its end is copied."""
FOLDER_BYTES = 64 * 2**20
"""What is kept in all: the newest files."""
COPY_S = 10.0
"""After so many seconds no further file is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLogs:
    """The files of this machine's workers. `job` is the run's number in a cluster with other jobs, "*" in one of its own."""

    folder: Path
    job: str = "*"

    def copy_to(self, into: Path) -> str:
        """Copy the logs, the newest first, within the bounds above; return the reason of a failure, or "".

        Names are new in each session, so that a continued run keeps those of before.
        """
        deadline, copied = time.monotonic() + COPY_S, 0
        try:
            for file in _newest_first(self.folder.glob(f"worker-*-{self.job}-*")):
                if time.monotonic() > deadline:
                    return f"not all of {self.folder} was copied in {COPY_S:g} s"
                into.mkdir(exist_ok=True)
                copied += _copy_end(file, into / file.name)
                if copied > FOLDER_BYTES:
                    break
            _remove_old(into)
        except OSError as error:
            return f"{into}: {error.strerror or error}"
        return ""


def _newest_first(files: Iterable[Path]) -> list[Path]:
    """Return files that are not empty."""
    known = [(file.stat(), file) for file in files]
    return [file for stat, file in sorted(known, key=lambda one: -one[0].st_mtime) if stat.st_size]


def _copy_end(source: Path, target: Path) -> int:
    """Copy a file, or the end of a long one, whole or not at all, with its time; return the bytes of the copy."""
    part = target.with_name(target.name + ".tmp")
    try:
        with source.open("rb") as file, part.open("wb") as copy:
            size = os.fstat(file.fileno()).st_size
            if size > FILE_BYTES:
                file.seek(size - FILE_BYTES)
                copy.write(f"... the first {size - FILE_BYTES} bytes of {source} are left out\n".encode())
            shutil.copyfileobj(file, copy)
        shutil.copystat(source, part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _remove_old(folder: Path) -> None:
    size = 0
    for file in _newest_first(folder.glob("worker-*")):
        size += file.stat().st_size
        if size > FOLDER_BYTES:
            file.unlink()


def start_ray(*, slots: int, min_sandbox_level: int) -> SessionLogs | None:
    """Join the cluster that RAY_ADDRESS names, or start a private one on this machine; return the logs of its workers here.

    The `slots` actors of the run ask for none of Ray's CPUs, so that two cores hold them all; the configuration sets their
    threads. A cluster that is started here asks for a token: some of its ports listen on every interface. Return None in a
    process that was a member before.
    """
    if ray.is_initialized():
        return None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would run its workers at low priority: whatever else the machine does would starve the engines.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Its head would remember 100,000 calls at 2 kB each, growing for hours; without a dashboard nobody reads them.
    os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "1000")
    address = os.environ.get("RAY_ADDRESS", "local")
    variables = worker_variables() | {MIN_LEVEL_VARIABLE: str(min_sandbox_level)} | _vllm_level()
    joined = ray.init(
        address=address,
        namespace="temper",
        log_to_driver=False,
        configure_logging=False,
        job_config=JobConfig(_py_driver_sys_path=FrozenPath(import_folders())),
        runtime_env={"env_vars": variables, "worker_process_setup_hook": HOOK},
        **({"include_dashboard": False, "num_cpus": max(slots, 2)} if address == "local" else {}),
    )
    job = "*" if address == "local" else ray.get_runtime_context().get_job_id()
    return SessionLogs(folder=Path(joined.address_info["session_dir"]) / "logs", job=job)


def has_open_access() -> bool:
    """Return whether the cluster that this process joined lets in everybody who reaches it."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() != "token"  # Ray sets it itself if it finds a token


def _vllm_level() -> dict[str, str]:
    """Return the variables of vLLM's log level for workers; none if a submitted job has them, which Ray refuses twice."""
    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    job_variables = (job.get("runtime_env") or {}).get("env_vars") or {}
    return {name: os.environ[name] for name in {VLLM_LEVEL} & os.environ.keys() - job_variables.keys()}


def stop_ray() -> None:
    """Leave the cluster. One that was started here ends with all its processes. Nothing waits longer than `STOP_S` seconds."""
    if ray.is_initialized():
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(STOP_S)
        if leaving.is_alive():
            atexit.unregister(ray.shutdown)  # it would wait once more
