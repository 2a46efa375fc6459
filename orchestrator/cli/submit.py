"""`submit`: a run as a job of a Ray cluster, or of a local one that lives as long as the job."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from orchestrator.cluster.ray_jobs import Job, JobServer, local_head
from orchestrator.cluster.this_machine import LOOPBACK, ROOT
from orchestrator.deadline import STOPPED
from orchestrator.pipeline.config import load_config

EXCLUDES = ["/.venv/", "/runs/", "/.git/", "/tests/", "/.*_cache/", "__pycache__/"]
PASSED_ON = ("MLFLOW_TRACKING_URI",)
LOCAL_NAMES = (LOOPBACK, "localhost", "::1")


def submit(config: Path, overrides: list[str], address: str | None, entrypoint: list[str] | None = None) -> int:
    """Submit a run, stream its log, return its exit status.

    SIGINT and SIGTERM stop the job, and the same call continues it. `address` is a cluster's job server,
    `http://host:8265`; None starts a local cluster for this job. A cluster with token authentication is reached by the
    token in RAY_AUTH_TOKEN. `entrypoint` replaces the command of the run.
    """
    local = address is None or urlsplit(address).hostname in LOCAL_NAMES
    command = entrypoint or run_command(config, overrides, local=local)
    with local_head() if address is None else nullcontext(named_server(address)) as server:
        return run_job(server, command, write=_to_stdout)


def run_job(server: JobServer, command: list[str], *, write: Callable[[str], None], working_dir: Path = ROOT) -> int:
    """Run a command as a job and follow it to its end; returns its exit status, 130 where a signal stopped it."""
    env_vars = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    job = Job.submit(
        server, shlex.join(command), working_dir=working_dir, excludes=EXCLUDES, env_vars=env_vars, write=write
    )
    with _sigterm_as_sigint():
        try:
            job.follow()
            return job.wait()
        except KeyboardInterrupt:
            write(f"stopping job {job.id}; once more leaves at once\n")
            job.stop()
            job.wait()
            return STOPPED


def run_command(config: Path, overrides: list[str], *, local: bool) -> list[str]:
    """Return the command of a run inside its job, which works on a copy of this repository: results must not land in it.

    On this machine `runs_dir` becomes absolute. Raise `ValueError` where another machine could not know a path.
    """
    runs_dir = Path(load_config(config, overrides).runs_dir)
    path = config.resolve()
    inside = path.is_relative_to(ROOT)
    if not local and not runs_dir.is_absolute():
        raise ValueError(f"runs_dir={runs_dir} must be absolute, on storage that all machines of the cluster share")
    if not local and not inside:
        raise ValueError(f"{config} lies outside {ROOT} and would not travel with the job; copy it to configs/")
    named = str(path.relative_to(ROOT) if inside else path)
    python = sys.executable if local else "python"
    return [python, "-m", "orchestrator", "run", named, *overrides, f"runs_dir={runs_dir.resolve()}"]


def named_server(address: str) -> JobServer:
    """Return the job server of an existing cluster."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"address {address!r} must be that of a job server, for example http://127.0.0.1:8265")
    token = os.environ.get("RAY_AUTH_TOKEN")
    return JobServer(address=address, headers={"Authorization": f"Bearer {token}"} if token else {})


def _to_stdout(text: str) -> None:
    print(text, end="", flush=True)


@contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    """Let SIGTERM do what SIGINT does, which asyncio knows how to treat.

    Neither is ignored inside, though a shell starts commands in the background so that they ignore SIGINT.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    before_int = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_int)
