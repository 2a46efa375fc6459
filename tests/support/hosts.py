"""Hosts with a cluster of Ray. Each is a network namespace of this machine, with its own loopback and address."""

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from support import switch

START_S, END_S = 120.0, 60.0
PORT = 6379
MTU = "9000"
ETHTOOL = 0x8946
OFFLOADS = {"checksums": 0x17, "TCP segments": 0x1F, "generic segments": 0x24, "generic receive": 0x2C}
"""Commands of ethtool. The switch copies frames, so each must be complete when it leaves its host."""


class NoHostsError(RuntimeError):
    """This machine can't have separate network namespaces."""


class Hosts:
    """A number of hosts without GPUs, joined by a switch. The first is the head of a Ray cluster of the first `nodes`.

    A host can be lost and come back. Each frame takes `delay_s`, and a share `loss` of frames is lost.
    """

    def __init__(self, count: int = 2, *, nodes: int | None = None, delay_s: float = 0.0, loss: float = 0.0) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="th-", dir="/tmp"))
        tag, net = f"{os.getpid() % 4096:x}", 1 + os.getpid() % 250
        self.names = [f"th{tag}{number}" for number in range(count)]
        self.addresses = [f"10.213.{net}.{1 + number}" for number in range(count)]
        self._nodes = count if nodes is None else nodes
        self._network = [str(delay_s), str(loss), "1", *(f"{name}s" for name in self.names)]
        self.environment = {
            "RAY_ADDRESS": f"{self.addresses[0]}:{PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        """Environment variables of a driver on the head."""
        self._started: list[subprocess.Popen[bytes]] = []
        self._switch: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Create the hosts and their cluster. Raise `NoHostsError` without permission."""
        try:
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("netns", "add", name)
                _ip("link", "add", f"{name}s", "mtu", MTU, "type", "veth", "peer", "name", name, "mtu", MTU)
                _leave_frames_whole(name)
                _ip("link", "set", f"{name}s", "up")
                _ip("link", "set", name, "netns", name)
                for words in (("addr", "add", f"{address}/24", "dev", name), ("link", "set", name, "up")):
                    _ip("-n", name, *words)
                _ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise NoHostsError(f"network namespaces can't be made here: {reason}") from error
        self._switch = subprocess.Popen([sys.executable, switch.__file__, *self._network], stdin=subprocess.PIPE)
        self._ray("--head", "--port", str(PORT), "--include-dashboard", "false", host=0)
        for host in range(1, self._nodes):
            self.join(host)

    def join(self, host: int = 1) -> None:
        """Start a host's node, and wait until the cluster has it."""
        self._ray("--address", self.environment["RAY_ADDRESS"], host=host)

    def lose(self, host: int = 1) -> None:
        """Kill all processes on a host."""
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def partition(self, *hosts: int) -> None:
        """Separate hosts from the others. Without hosts, join all."""
        others = [number for number in range(len(self.names)) if number not in hosts]
        line = "|".join(" ".join(map(str, group)) for group in (others, hosts)) if hosts else "all"
        assert self._switch is not None
        assert self._switch.stdin is not None
        self._switch.stdin.write(f"{line}\n".encode())
        self._switch.stdin.flush()

    def before(self, host: int = 0) -> list[str]:
        """Return the prefix of a command on a host."""
        return ["ip", "netns", "exec", self.names[host]]

    def pids(self, host: int) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.names[host]).split()]

    def close(self) -> None:
        """End the hosts and all that runs on them."""
        for host in reversed(range(len(self.names))):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                deadline = time.monotonic() + END_S
                while (pids := self.pids(host)) and time.monotonic() < deadline:
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(0.1)
                _ip("netns", "del", self.names[host])
        if self._switch is not None:
            self._switch.communicate(timeout=END_S)  # it ends with its input
        for one in self._started:
            one.wait(timeout=END_S)
        for name in self.names:
            subprocess.run(
                ["ip", "link", "del", f"{name}s"], capture_output=True, check=False
            )  # left by a failed start
        shutil.rmtree(self._folder)

    def _ray(self, *words: str, host: int) -> None:
        """Start a node and wait until Ray reports it."""
        command = [*self.before(host), sys.executable, "-m", "ray.scripts.scripts", "start", *words]
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


def _leave_frames_whole(interface: str) -> None:
    """Switch off all work that an interface leaves to its other end, as `ethtool -K` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(control, ETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


@contextlib.contextmanager
def hosts(count: int = 2, *, nodes: int | None = None, delay_s: float = 0.0, loss: float = 0.0) -> Iterator[Hosts]:
    """Hosts that end after the test. Raise `NoHostsError` if this machine does not support them."""
    made = Hosts(count, nodes=nodes, delay_s=delay_s, loss=loss)
    try:
        made.start()
        yield made
    finally:
        made.close()
