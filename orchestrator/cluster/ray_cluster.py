"""Ray itself: joins a cluster or starts one on this machine, copies its workers' logs, and leaves it."""

import atexit
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray.job_config import JobConfig

from temper.envs.sandbox.seal_probe import MIN_LEVEL_VARIABLE
from temper.orchestrator.cluster.head import require_head
from temper.orchestrator.cluster.this_machine import HOOK, FrozenPath, import_folders, worker_variables
from temper.orchestrator.run.driver import VLLM_LEVEL
from temper.rollout.engines.scratch_folder import scratch_base

STOP_S = 60.0
WAIT_POLICY = "OMP_WAIT_POLICY"
FILE_BYTES = 8 * 2**20
"""Only this end of a longer file is copied."""
FOLDER_BYTES = 64 * 2**20
"""Maximum of all copies. The newest files are kept."""
COPY_S = 10.0
"""After this time no further file is copied."""
SOCKETS = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1"
"""Ray's longest path of a socket below its folder, with the longest process id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLogs:
    """The logs of this machine's workers. `job` is the run's number in a shared cluster, "*" in a private one."""

    folder: Path
    job: str = "*"

    def copy_to(self, into: Path) -> str:
        """Copy the logs within the limits above, newest first. Return the reason of a failure, or "".

        Names are unique per session, so a resumed run keeps earlier logs.
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
    """Return the non-empty files."""
    known = [(file.stat(), file) for file in files]
    return [file for stat, file in sorted(known, key=lambda one: -one[0].st_mtime) if stat.st_size]


def _copy_end(source: Path, target: Path) -> int:
    """Copy a file, or the end of a long one, atomically and with its time; return the bytes of the copy."""
    part = target.with_name(target.name + ".tmp")
    try:
        with source.open("rb") as file, part.open("wb") as copy:
            size = os.fstat(file.fileno()).st_size
            if size > FILE_BYTES:
                file.seek(size - FILE_BYTES)
                copy.write(f"... the first {size - FILE_BYTES} bytes of {source} are omitted\n".encode())
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
    """Join the cluster of RAY_ADDRESS, or start a private one here. Return the logs of its local workers.

    The run's `slots` actors request no Ray CPUs, so two cores hold them all. The settings limit their threads. A private
    cluster requires a token, since some of its ports listen on every interface. Return None if this process was joined
    before. Raise as `require_head`.
    """
    if ray.is_initialized():
        return None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Waiting threads of torch would spin, and take the cores from the learner or the engines.
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")
    # Ray would run its workers at low priority, and other processes would starve the engines.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Its head would store 100,000 calls at 2 kB each. Without a dashboard nobody reads them.
    os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "1000")
    # Ray would start an idle worker for each CPU beforehand, at a CPU second each.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    address = os.environ.get("RAY_ADDRESS", "local")
    require_head(address)
    variables = worker_variables() | {MIN_LEVEL_VARIABLE: str(min_sandbox_level)} | _driver_variables()
    with _own_sigterm(), _typed_errors():
        joined = ray.init(
            address=address,
            namespace="temper",
            log_to_driver=False,
            configure_logging=False,
            job_config=JobConfig(_py_driver_sys_path=FrozenPath(import_folders())),
            runtime_env={"env_vars": variables, "worker_process_setup_hook": HOOK},
            **(_private_cluster(slots) if address == "local" else {}),
        )
    job = "*" if address == "local" else ray.get_runtime_context().get_job_id()
    return SessionLogs(folder=Path(joined.address_info["session_dir"]) / "logs", job=job)


def ray_base(inside: str = "ray") -> Path:
    """Return the folder of temporary files, or /tmp if Ray's sockets in the folder `inside` it would have too long a path."""
    return scratch_base(len(os.fsencode(inside + SOCKETS)))


def _private_cluster(slots: int) -> dict[str, Any]:
    """Return the options of a private cluster. RAY_TMPDIR keeps its meaning."""
    folder = {} if "RAY_TMPDIR" in os.environ else {"_temp_dir": str(ray_base() / "ray")}
    return {"include_dashboard": False, "num_cpus": max(slots, 2), **folder}


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM. An exit by Ray's own handler becomes a `KeyboardInterrupt`."""
    own = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as end:
        raise KeyboardInterrupt from end
    finally:
        if signal.getsignal(signal.SIGTERM) is not own:  # only the main thread sets handlers
            signal.signal(signal.SIGTERM, own)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Raise a `RuntimeError` for the bare `Exception` of Ray, which a busy machine causes if its processes start too slowly."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise RuntimeError(
            f"Ray did not start: {error} End other programs that use the cores or the memory, then rerun the command"
        ) from error


def has_open_access() -> bool:
    """Return whether the joined cluster accepts connections without a token."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() != "token"  # Ray sets it if it finds a token


def _driver_variables() -> dict[str, str]:
    """Return this process's variables for workers, except those that a submitted job sets, since Ray refuses duplicates."""
    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    job_variables = (job.get("runtime_env") or {}).get("env_vars") or {}
    return {name: os.environ[name] for name in {VLLM_LEVEL, WAIT_POLICY} & os.environ.keys() - job_variables.keys()}


def stop_ray() -> None:
    """Leave the cluster. A private one ends with all its processes. Waits at most `STOP_S` seconds."""
    if ray.is_initialized():
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(STOP_S)
        if leaving.is_alive():
            atexit.unregister(ray.shutdown)  # it would wait again
