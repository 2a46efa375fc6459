"""A cluster of Ray on two hosts, which are network namespaces of this machine: each has its own loopback and address."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 120.0
PORT = 6379


class NoHostsError(RuntimeError):
    """This machine can't have separate network namespaces."""


class TwoHosts:
    """A head and another host, which can be lost and come back, both without GPUs."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="th-", dir="/tmp"))
        tag = f"{os.getpid() % 4096:x}"
        self._names = f"th{tag}a", f"th{tag}b"
        net = 1 + os.getpid() % 250
        self.addresses = f"10.213.{net}.1", f"10.213.{net}.2"
        self.environment = {
            "RAY_ADDRESS": f"{self.addresses[0]}:{PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        """Environment variables of a driver on the head."""
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Create two connected hosts with Ray. Raise `NoHostsError` without permission."""
        try:
            for name in self._names:
                _ip("netns", "add", name)
            _ip("link", "add", self._names[0], "type", "veth", "peer", "name", self._names[1])
            for name, address in zip(self._names, self.addresses, strict=True):
                _ip("link", "set", name, "netns", name)
                for words in (("addr", "add", f"{address}/24", "dev", name), ("link", "set", name, "up")):
                    _ip("-n", name, *words)
                _ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoHostsError(f"network namespaces can't be made here: {error}") from error
        self._ray("--head", "--port", str(PORT), "--include-dashboard", "false", host=0)
        self.join()

    def join(self) -> None:
        """Start the other host's node, and wait until the cluster has it."""
        self._ray("--address", self.environment["RAY_ADDRESS"], host=1)

    def lose(self) -> None:
        """Kill all processes on the other host."""
        for pid in self._pids(1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def before(self) -> list[str]:
        """Return the prefix of a command on the head."""
        return ["ip", "netns", "exec", self._names[0]]

    def close(self) -> None:
        """End both hosts and all that runs on them."""
        for host in (1, 0):
            with contextlib.suppress(subprocess.CalledProcessError):
                while pids := self._pids(host):
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(0.1)
                _ip("netns", "del", self._names[host])
        for one in self._started:
            one.wait()
        subprocess.run(["rm", "-rf", str(self._folder)], check=True)

    def _ray(self, *words: str, host: int) -> None:
        """Start a node and wait until Ray reports it."""
        command = [
            "ip",
            "netns",
            "exec",
            self._names[host],
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            *words,
        ]
        command += ["--node-ip-address", self.addresses[host], "--num-cpus", "4", "--num-gpus", "0"]
        command += ["--disable-usage-stats", "--temp-dir", str(self._folder), "--block"]
        log, env = self._folder / f"{host}.log", os.environ | self.environment
        env.pop("RAY_ADDRESS")
        env["GLOO_SOCKET_IFNAME"] = "lo"  # as a process that has imported the engine has it: ranks need another one
        with log.open("wb") as output:
            self._started.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env))
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text(errors="replace"):
            assert self._started[-1].poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.1)

    def _pids(self, host: int) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self._names[host]).split()]


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Two hosts that end after the test. Raise `NoHostsError` if this machine does not support them."""
    made = TwoHosts()
    try:
        made.start()
        yield made
    finally:
        made.close()
