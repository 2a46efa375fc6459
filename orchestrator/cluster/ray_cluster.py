"""Ray itself: joining a cluster or starting one on this machine, and leaving it."""

import atexit
import json
import os
import threading
from pathlib import Path

import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray.job_config import JobConfig

from temper.envs.sandbox.seal_probe import MIN_LEVEL_VARIABLE
from temper.orchestrator.cluster.module_search import HOOK, FirstOnes, worker_variables
from temper.orchestrator.cluster.session_logs import SessionLogs
from temper.orchestrator.cluster.this_machine import IMPORTS, IMPORTS_OF_COPY
from temper.orchestrator.run.driver import VLLM_LEVEL

STOP_S = 60.0


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
        job_config=JobConfig(_py_driver_sys_path=FirstOnes([str(IMPORTS), str(IMPORTS_OF_COPY)])),
        runtime_env={"env_vars": variables, "worker_process_setup_hook": HOOK},
        **({"include_dashboard": False, "num_cpus": max(slots, 2)} if address == "local" else {}),
    )
    job = "*" if address == "local" else ray.get_runtime_context().get_job_id()
    return SessionLogs(folder=Path(joined.address_info["session_dir"]) / "logs", job=job)


def asks_for_no_token() -> bool:
    """Return whether the cluster that this process joined lets in everybody who reaches it."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() != "token"  # Ray sets it itself if it finds a token


def _vllm_level() -> dict[str, str]:
    """Return the variables of vLLM's log level for workers; none if a submitted job has them, which Ray refuses twice."""
    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    told = (job.get("runtime_env") or {}).get("env_vars") or {}
    return {name: os.environ[name] for name in {VLLM_LEVEL} & os.environ.keys() - told.keys()}


def stop_ray() -> None:
    """Leave the cluster. One that was started here ends with all its processes. Nothing waits longer than `STOP_S` seconds."""
    if ray.is_initialized():
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(STOP_S)
        if leaving.is_alive():
            atexit.unregister(ray.shutdown)  # it would wait once more
