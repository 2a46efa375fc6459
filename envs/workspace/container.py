"""Containers of a local image, for the shell commands and hidden tests of a workspace.

A container has no network, no capabilities, a user without rights, a read-only root folder, and limits on memory, CPU,
processes and disk. It ends with its standard input: at the end of its episode, and at the death of this process.
"""

import inspect
import logging
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from temper.envs.core.errors import EnvironmentFault, SandboxError
from temper.envs.core.process import wrap_in_shell
from temper.envs.sandbox import bridge, literals, runner, seal
from temper.envs.sandbox.sandbox import Sandbox
from temper.envs.sandbox.sealed_process import WAITS, Limits, Reply, ReplyKind, SealedProcess, to_unicode
from temper.envs.workspace import container_main, folder
from temper.envs.workspace.container_main import MARKER_BYTES
from temper.envs.workspace.files import MEMORY_MB, Workspace

LOG = logging.getLogger(__name__)
RUNTIMES = ("podman", "docker")
START_S, RENEW_S, READ_S, CLOSE_S = 120.0, 30.0, 10.0, 20.0
FLAGS = (
    *(
        "--interactive",
        "--init=false",
        "--rm",
        "--pull=never",
        "--log-driver=none",
        "--stop-timeout=0",
    ),
    *("--network=none", "--user=65534:65534", "--cap-drop=all", "--security-opt=no-new-privileges", "--pids-limit=128"),
    *("--cpus=1", f"--memory={MEMORY_MB}m", f"--memory-swap={MEMORY_MB}m", "--read-only", "--env=HOME=/tmp"),
    *("--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777,size=64m", "--entrypoint=python3"),
)
OF_PODMAN = ("--read-only-tmpfs=false",)
OWNER = secrets.token_hex(8)
"""Labels the containers of this process."""
_REAPERS: "dict[str, subprocess.Popen[bytes]]" = {}
"""By runtime. Their inputs stay open until this process ends."""
_REAPER_LOCK = threading.Lock()
REAPER = """
cat
for seconds in 1 10; do
    sleep $seconds
    left=$("$0" ps --all --quiet --filter="label=temper=$1")
    [ -z "$left" ] || "$0" rm --force $left
done
"""
PACKAGES = ("temper", "temper.envs", "temper.envs.sandbox", "temper.envs.workspace")
LOADER = """
import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""
IMPORTS = "from temper.envs.workspace.folder import files_in, run_command\n"


@cache
def find_runtime(image: str) -> str:
    """Return the runtime of this machine that has the image. Raise `EnvironmentFault` if none has it."""
    faults = []
    for runtime in filter(shutil.which, RUNTIMES):
        command = [runtime, "image", "inspect", "--format={{len .Config.Volumes}}", image]
        looked = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
        if looked.returncode == 0 and looked.stdout.strip() == "0":
            return runtime
        if looked.returncode == 0:
            raise EnvironmentFault(
                f"options.image: {image!r} has volumes, which have no limit; build it without VOLUME"
            )
        faults.append(f"{runtime}: {looked.stderr.strip()[-200:]}; run `{runtime} pull {image}`")
    raise EnvironmentFault(
        f"options.image: {image!r} is not on this machine: {' or '.join(faults) or 'install podman or docker'}"
    )


def start_reaper(runtime: str) -> None:
    """Start a process, once, that removes the containers of this process after its end.

    Most containers end when their input closes. If a client dies before it starts its container, the container remains.
    """
    command = wrap_in_shell(["sh", "-c", REAPER, runtime, OWNER])
    null = subprocess.DEVNULL
    with _REAPER_LOCK:
        if runtime not in _REAPERS:
            _REAPERS[runtime] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
            )


@cache
def program() -> str:
    """Return the program of process 1, with the modules that it needs."""
    modules = (literals, runner, seal, bridge, folder, container_main)
    texts = {module.__name__: inspect.getsource(module) for module in modules}
    return LOADER.format(texts=dict.fromkeys(PACKAGES, "") | texts)


class Container:
    """One container, started by the first process. It is replaced if it does not answer."""

    def __init__(self, image: str, *, clears: bool = False) -> None:
        """With `clears` each process finds an empty disk."""
        self.image, self.runtime = image, find_runtime(image)
        self._arguments = (container_main.CLEARS,) if clears else ()
        self.ended_before, self.starts = False, 0
        self._client: subprocess.Popen[bytes] | None = None

    def start(self, limits: Limits, source: str = "") -> "ContainerProcess":
        return ContainerProcess(self, limits)

    def renew(self) -> socket.socket:
        """Start a process after the end of all others in the container. Return its channel.

        Raise `EnvironmentFault` if a new container does not start.
        """
        for _ in range(2):
            try:
                self._await_marker(START_S if self._client is None else RENEW_S)
                return self._channel
            except OSError as error:
                fault = f"{error!r} {self._errors()}"
                self.close()
        raise EnvironmentFault(f"{self.runtime} runs no container of {self.image!r}: {fault.strip()}")

    def _await_marker(self, seconds: float) -> None:
        deadline, marker, seen = time.monotonic() + seconds, secrets.token_bytes(MARKER_BYTES), b""
        if self._client is None:
            self._open()
        self._channel.settimeout(seconds)
        self._channel.sendall(bytes(4) + marker)
        while not seen.endswith(marker):
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"no answer in {seconds:g} s")
            self._channel.settimeout(left)
            part = self._channel.recv(2**16)
            if not part:
                raise ConnectionError("it ended")
            seen = (seen + part)[-MARKER_BYTES:]

    def _open(self) -> None:
        self._name = f"temper-{secrets.token_hex(8)}"
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as the client
        self.starts += 1
        own = OF_PODMAN if self.runtime == "podman" else ()
        start_reaper(self.runtime)
        command = [self.runtime, "run", f"--name={self._name}", f"--label=temper={OWNER}", *FLAGS, *own]
        command += [self.image, "-I", "-c", program(), *self._arguments]
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._client = subprocess.Popen(
                command,
                cwd=tempfile.gettempdir(),  # podman's monitor leaves a file there if memory runs out
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def _errors(self) -> str:
        if self._client is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            self._client.wait(1.0)
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").strip()[-500:]

    def close(self) -> None:
        """End the container and wait for its removal."""
        if self._client is None:
            return
        client, self._client = self._client, None
        self._channel.close()
        try:
            client.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
            command = [self.runtime, "rm", "--force", self._name]
            try:
                subprocess.run(command, capture_output=True, timeout=START_S, check=True)
            except (subprocess.SubprocessError, OSError) as error:
                LOG.warning("a container may remain (%s); run %s", error, " ".join(command))
        self._stderr.close()


class ContainerProcess(SealedProcess):
    """A process in a container. Its first request ends the container's other processes and starts it."""

    def __init__(self, container: Container, limits: Limits) -> None:
        self.container, self.limits, self.left_s = container, limits, limits.wall_s
        self.sealed, self.exit_code, self.process = False, None, 0
        self.deadline, self.queued_s, self.waits = 0.0, 0.0, {}

    def _confirm_seal(self) -> None:
        start = time.monotonic()
        self.channel = self.container.renew()
        WAITS.seconds += time.monotonic() - start
        self.sealed = True

    def _ended(self) -> Reply:
        """Raise `SandboxError` at the first end of a container, for another try. The second one is the model's fault."""
        self.container.close()
        if not self.container.ended_before:
            self.container.ended_before = True
            raise SandboxError(f"a container of {self.container.image!r} ended")
        return Reply(kind=ReplyKind.CRASH, detail="the container ended")

    def close(self) -> None:
        """Leave the end of the process to the next one, or to the end of the container."""


class ContainerWorkspace(Workspace):
    """Commands are shell commands in a container, which may change the files. Their processes end with them.

    A command whose files are beyond the quotas changes nothing: its container is replaced.
    """

    def __init__(self, files: Mapping[str, str], image: str) -> None:
        super().__init__(files)
        self.container = Container(image)

    def close(self) -> None:
        self.container.close()

    def run(self, sandbox: Sandbox, command: str, limits: Limits) -> Reply:
        files = {path: to_unicode(text) for path, text in self.files.items()}
        reply = self._call(limits, "run_command", files, to_unicode(command))
        starts = self.container.starts
        found = self._call(Limits(wall_s=READ_S), "files_in", ".")
        try:
            if found.kind is not ReplyKind.VALUE or self.container.starts != starts:
                raise ValueError(found.detail or "the container was replaced")
            self.files = Workspace(found.value).files
        except ValueError as error:
            self.container.close()
            note = f"\n{error}; the files are as before the command"
            return Reply(kind=reply.kind, value=f"{reply.value}{note}", detail=f"{reply.detail}{note}")
        return reply

    def _call(self, limits: Limits, name: str, *arguments: Any) -> Reply:
        with self.container.start(limits) as process:
            loaded = process.load(IMPORTS)
            return process.call(name, list(arguments)) if loaded.kind is ReplyKind.VALUE else loaded
