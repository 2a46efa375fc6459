"""A Ray head on this machine with a job server."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from temper.envs.core.process import kill_group, set_variables
from temper.envs.sandbox.seal import end_with_parent
from temper.orchestrator.cluster.ray_cluster import ray_base
from temper.orchestrator.cluster.ray_jobs import POLL_S, START_S, _client
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_ports
from temper.rollout.engines.scratch_folder import RANDOM_BYTES

PREFIX, STOP_S = "temper-ray-", 20.0


@contextmanager
def local_head() -> Iterator[str]:
    """Run a Ray head during the block and yield the address of its job server. It requires a token.

    Raise `RuntimeError` with its output if it does not start.
    """
    port, dashboard, agent = free_ports(3)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=ray_base(PREFIX + "x" * RANDOM_BYTES))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", LOOPBACK, "--port", str(port), "--temp-dir", folder]
    command += ["--dashboard-host", LOOPBACK, "--dashboard-port", str(dashboard)]
    command += ["--dashboard-agent-listen-port", str(agent)]
    access = {"RAY_AUTH_MODE": "token"}  # some of its ports listen on every interface
    access["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
    with set_variables(access), Path(folder, "head.log").open("w+") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, preexec_fn=end_with_parent)
        try:
            address, deadline = f"http://{LOOPBACK}:{dashboard}", time.monotonic() + START_S
            while not _answers(address):
                if head.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"the local Ray head did not start:\n{log.read()[-2000:]}")
                time.sleep(POLL_S)
            yield address
        finally:
            head.terminate()
            with suppress(subprocess.TimeoutExpired):
                head.wait(STOP_S)
            kill_group(head.pid)
            head.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _answers(address: str) -> bool:
    try:
        _client(address).list_jobs()
    except (OSError, RuntimeError):
        return False
    return True
