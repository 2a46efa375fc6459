"""Shell commands in containers: their rights, attacks, and the end of the containers."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.bound import bound, opened, say
from support.containers import IMAGE, containers, in_image, require_image

from temper.envs.catalog import configure_env
from temper.envs.core.errors import EnvironmentFault, failure_of
from temper.envs.core.turn_text import turn_text
from temper.envs.sandbox.sealed_process import Limits, ReplyKind
from temper.envs.workspace.bugs import demonstrate, generate
from temper.envs.workspace.container import Container, ContainerWorkspace, find_runtime

FILES = {"m.py": "def f(x):\n    return x + 1\n", "data/d.txt": "one\r\ntwo\n", "old.txt": "old\n"}
REMOVED_S = 60.0


@pytest.fixture(scope="module")
def shared() -> Iterator[ContainerWorkspace]:
    with closing(ContainerWorkspace(FILES, require_image())) as workspace:
        yield workspace


@pytest.fixture
def workspace(shared: ContainerWorkspace) -> ContainerWorkspace:
    """A workspace with the files above, in a container that other tests have used."""
    shared.files, shared.left_s = {}, 60.0
    shared.exec("chmod -R 700 .; rm -rf /tmp/*")
    shared.files = dict(FILES)
    shared.left_s = 60.0
    shared.container.ended_before = False
    return shared


def python(code: str) -> str:
    return f"python3 - <<'END'\n{code}\nEND\n"


def test_a_shell_command_reads_changes_and_runs_the_files(workspace: ContainerWorkspace) -> None:
    assert workspace.exec("python3 -c 'import m; print(m.f(1))' | tr 2 3; exit 4") == "3\n\nexit 4\n"
    workspace.write("m.py", "def f(x):\n    return x\n")
    assert workspace.exec(
        "python3 -c 'import m; print(m.f(1))' >> data/d.txt; rm old.txt; mkdir .git; echo 1 > .git/x"
    ) == ("\nexit 0\n")
    assert workspace.files == {"m.py": "def f(x):\n    return x\n", "data/d.txt": "one\r\ntwo\n1\n"}
    assert workspace.exec("cat .git/x") == "1\n\nexit 0\n"


def test_a_command_has_a_deadline_and_keeps_its_files(workspace: ContainerWorkspace) -> None:
    workspace.left_s = 1.0
    assert workspace.exec("echo new > new.txt; sleep 50").startswith("time: over")
    assert workspace.files["new.txt"] == "new\n"
    with pytest.raises(ValueError, match="no time left"):
        workspace.exec("true")


def test_a_flood_of_output_is_cut(workspace: ContainerWorkspace) -> None:
    assert workspace.exec("yes | head -c 3000000").startswith("output: ")
    flood = workspace.exec("yes > /dev/stdout")
    assert len(flood) < 1000
    assert workspace.exec("echo 1") == "1\n\nexit 0\n"


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("head -c 70000 /dev/zero > big", "big"),
        ("for i in $(seq 70); do echo > f$i; done", "quotas"),
        ("for i in $(seq 9); do yes | head -c 60000 > f$i; done", "bytes in all"),
        ("echo > \"$(printf 'a\\nb')\"", "path"),
        ("chmod 0 m.py", "PermissionError"),
    ],
)
def test_files_beyond_the_quotas_change_nothing(workspace: ContainerWorkspace, command: str, note: str) -> None:
    output = workspace.exec(f"echo 2 > old.txt; {command}")
    assert note in output
    assert workspace.exec("cat old.txt") == "old\n\nexit 0\n"
    assert workspace.files == FILES


def test_links_lead_to_no_file(workspace: ContainerWorkspace) -> None:
    workspace.exec("ln -sf /etc/passwd m.py; ln -s /etc etc; ln -s / data/root; mkfifo pipe; ln -s /proc/1/environ e")
    assert workspace.files == {name: FILES[name] for name in ("data/d.txt", "old.txt")}
    workspace.write("m.py", "x = 1\n")
    assert workspace.exec("cat m.py; test -L m.py") == "x = 1\n\nexit 1\n"
    workspace.exec("rm -rf /tmp/workspace; ln -s /etc /tmp/workspace")
    assert workspace.files == {}
    workspace.write("m.py", "x = 2\n")
    assert workspace.exec("pwd; ls") == "/tmp/workspace\nm.py\n\nexit 0\n"


NETWORK = """
import socket
for family, address in (("AF_INET", ("1.1.1.1", 53)), ("AF_INET6", ("2606:4700:4700::1111", 53))):
    with socket.socket(getattr(socket, family)) as one:
        one.settimeout(2)
        try:
            print("connected", one.connect(address))
        except OSError as error:
            print(error.errno)
print([name for _, name in socket.if_nameindex()])
listener = socket.create_server(("127.0.0.1", 0))
print("loopback", bool(socket.create_connection(listener.getsockname())))
"""


def test_there_is_no_network_but_loopback(workspace: ContainerWorkspace) -> None:
    output = workspace.exec(python(NETWORK))
    assert "connected" not in output
    assert "loopback True" in output  # the test would see a connection
    assert "['lo']" in output


def test_only_the_folder_of_temporary_files_can_be_written(workspace: ContainerWorkspace) -> None:
    mine = r"find / -xdev -writable \( -type d -o -type f \) 2>/dev/null; find /dev /run /var -writable -type d 2>/dev/null"
    found = workspace.exec(f"{mine}; touch /tmp/x && echo wrote; touch /x /etc/x /usr/bin/x /root/x").split("\n")
    assert "wrote" in found
    assert [
        line for line in found if line.startswith("/") and not line.startswith(("/tmp", "/dev/shm", "/dev/mqueue"))
    ] == []
    assert sum("cannot touch" in line for line in found) == 4


def test_rights_and_limits_hold(workspace: ContainerWorkspace) -> None:
    status = workspace.exec("id -u; cat /proc/self/status; ls /proc | grep -c '^[0-9]'")
    assert status.startswith("65534\n")
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in status
    assert int(status.split("\n")[-4]) < 12  # no process of the machine
    assert "No space left" in workspace.exec("head -c 100000000 /dev/zero > /tmp/big; rm /tmp/big")
    assert "survived" not in workspace.exec("python3 -c 'x = bytearray(1 << 30); print(\"survived\")'")
    assert workspace.exec("mount -t tmpfs x /tmp 2>/dev/null || unshare -r true 2>/dev/null || echo refused") == (
        "refused\n\nexit 0\n"
    )


SYSTEM_CALLS = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
unshare, clone = (272, 56) if platform.machine() == "x86_64" else (97, 220)
for call in ((unshare, 0x10000000), (clone, 0x10000011, 0, 0, 0, 0), (0x40000000 + unshare, 0), (435, 0, 0), (425, 1, 0)):
    result = libc.syscall(*call)
    print(errno.errorcode[ctypes.get_errno()] if result < 0 else "allowed")
"""


REFUSED = "EPERM\nEPERM\nEPERM\nENOSYS\nENOSYS\n"


def test_user_namespaces_and_io_uring_are_refused(workspace: ContainerWorkspace) -> None:
    assert workspace.exec(python(SYSTEM_CALLS)) == f"{REFUSED}\nexit 0\n"


def test_the_filter_of_a_container_holds_without_one() -> None:
    filtered = "from temper.envs.sandbox import seal\nseal.no_new_privileges()\nseal.refuse_user_namespaces()\n"
    ran = run_python(filtered + SYSTEM_CALLS)
    assert ran.stdout == REFUSED


def test_process_1_refuses_to_run_outside_a_container() -> None:
    """It would kill all processes of its user."""
    ran = run_python("from temper.envs.workspace import container_main\ncontainer_main.main()\n")
    assert (ran.returncode, "RuntimeError" in ran.stderr) == (1, True)


def run_python(code: str) -> "subprocess.CompletedProcess[str]":
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=variables
    )


def test_no_secret_of_this_process_reaches_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:hunter2@proxy")
    monkeypatch.setenv("API_TOKEN", "hunter2")
    with closing(ContainerWorkspace(FILES, require_image())) as workspace:
        assert "hunter2" not in workspace.exec("env; cat /proc/*/environ /proc/*/cmdline /etc/hosts")


def test_processes_end_with_their_command(workspace: ContainerWorkspace) -> None:
    spoils = "setsid nohup sh -c 'while true; do echo bad > m.py; sleep 0.05; done' > /dev/null 2>&1 &"
    assert workspace.exec(f"{spoils}\nuntil grep bad m.py; do sleep 0.05; done") == "bad\n\nexit 0\n"  # it does run
    workspace.write("m.py", "good\n")
    assert workspace.exec("sleep 0.5; cat m.py; ls /proc | grep -c '^[0-9]'").startswith("good\n")


BOMB = """
import os
os.setsid()
print("bomb", flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""


def test_a_fork_bomb_ends_with_its_command(workspace: ContainerWorkspace) -> None:
    workspace.left_s = 3.0
    assert workspace.exec("echo kept > kept.txt\n" + python(BOMB)).startswith("time: ")
    assert workspace.files["kept.txt"] == "kept\n"
    workspace.left_s = 60.0
    count, _ = workspace.exec("ls /proc | grep -c '^[0-9]'").split("\n", 1)
    assert int(count) < 12


PROCESS_1 = """
import ctypes, os, signal
for name in ("mem", "environ", "fd", "maps", "cwd"):
    try:
        path = f"/proc/1/{name}"
        print("open", name, os.listdir(path) if name in ("fd", "cwd") else open(path, "rb").read(9))
    except OSError:
        print("closed", name)
libc = ctypes.CDLL(None, use_errno=True)
for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid(), os.getppid()}:
    print("traced" if libc.ptrace(16, pid, 0, 0) == 0 else "not traced", pid)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP):
    os.kill(1, number)
    print("alive")
"""


def test_process_1_is_out_of_reach(workspace: ContainerWorkspace) -> None:
    starts = workspace.container.starts
    output = workspace.exec(python(PROCESS_1))
    assert "open" not in output
    assert output.count("closed") == 5
    assert output.count("not traced") == output.count("traced") == 2  # process 1, and the one that runs the command
    assert output.count("alive") == 4
    assert workspace.exec("kill -9 -1").startswith("crash: ")
    assert workspace.exec("echo 1") == "1\n\nexit 0\n"
    assert workspace.container.starts == max(starts, 1)


SHARED_MEMORY = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while True:
    place = libc.shmat(libc.shmget(0, 100 << 20, 0o1600), None, 0)
    ctypes.memset(place, 1, 100 << 20)
"""


def test_memory_without_a_process_ends_at_most_the_container(workspace: ContainerWorkspace) -> None:
    """It outlives its processes, so that process 1 may run out of memory. That is no fault of the environment."""
    workspace.exec(python(SHARED_MEMORY))
    workspace.exec(python(SHARED_MEMORY))
    workspace.container.close()
    assert workspace.exec("cat old.txt") == "old\n\nexit 0\n"


@pytest.mark.parametrize("text", ["\ud800", "\0", "a\u2028b", "x" * 60_000])
def test_odd_texts_are_no_fault_of_the_environment(workspace: ContainerWorkspace, text: str) -> None:
    workspace.write("odd.txt", text)
    assert workspace.exec(f"true {text[:9]}")
    assert workspace.exec("wc -c < odd.txt").endswith("exit 0\n")


def test_a_lost_container_is_replaced_once_and_then_blamed(workspace: ContainerWorkspace) -> None:
    """The runtime may lose a container: the command runs again. If it ends two of them, the model sees it."""
    assert workspace.exec("echo 1") == "1\n\nexit 0\n"
    runtime, starts = workspace.container.runtime, workspace.container.starts
    remove = [runtime, "rm", "--force", workspace.container._name]
    kill = subprocess.Popen(["sh", "-c", 'sleep 1; "$@"', "sh", *remove], stdout=subprocess.DEVNULL)
    assert workspace.exec("sleep 6; cat old.txt") == "old\n\nexit 0\n"
    assert kill.wait(60) == 0
    assert workspace.container.starts == starts + 1
    remove = [runtime, "rm", "--force", workspace.container._name]
    kill = subprocess.Popen(["sh", "-c", 'sleep 1; "$@"', "sh", *remove], stdout=subprocess.DEVNULL)
    assert workspace.exec("sleep 6").startswith("crash: ")
    assert kill.wait(60) == 0
    assert workspace.files == FILES


def test_the_containers_end_is_waited_for() -> None:
    with closing(ContainerWorkspace(FILES, require_image())) as workspace:
        workspace.exec("true")
        assert workspace.container._name in containers()
    assert workspace.container._name not in containers()


WORKER = """
import sys, time
from temper.envs.workspace.container import ContainerWorkspace
workspace = ContainerWorkspace({"m.py": ""}, sys.argv[1])
workspace.exec("true")
print(workspace.container._name, workspace.container._client.pid, flush=True)
workspace.exec("setsid sh -c 'trap : TERM HUP INT; while true; do sleep 1; done'")
"""


@pytest.mark.parametrize("victim", ["worker", "client"])
def test_a_container_ends_with_its_worker_or_client(victim: str) -> None:
    image = require_image()
    path = os.pathsep.join(path for path in sys.path if path)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, image], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    try:
        assert worker.stdout is not None
        name, client = worker.stdout.readline().split()
        assert name in containers()
        time.sleep(0.5)  # the command runs
        if victim == "client":
            os.kill(int(client), signal.SIGKILL)
        worker.kill()
        await_containers(lambda: name not in containers())
    finally:
        worker.kill()
        worker.communicate()


STARTS = """
import sys, time
from temper.envs.workspace.container import Container
container = Container(sys.argv[1])
container._open()
print(container._name, container._client.pid, flush=True)
time.sleep(600)
"""


SLOW = """#!/bin/sh
[ "$1" = run ] || exec {runtime} "$@"
shift
container=$({runtime} create "$@") && sleep 2 && exec {runtime} start --attach --interactive "$container"
"""
"""A runtime that waits between the creation and the start of a container."""


def test_a_starting_container_ends_with_its_worker_and_client(tmp_path: Path) -> None:
    """Ray kills the children of a worker that ends."""
    command = [sys.executable, "-c", STARTS, image := require_image()]
    slow = tmp_path / (runtime := find_runtime(image))
    slow.write_text(SLOW.format(runtime=shutil.which(runtime)), encoding="utf-8")
    slow.chmod(0o755)
    modules = os.pathsep.join(path for path in sys.path if path)
    variables = os.environ | {"PYTHONPATH": modules, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as worker:
        try:
            assert worker.stdout is not None
            name, child = worker.stdout.readline().split()
            await_containers(lambda: name in containers())
            os.kill(int(child), signal.SIGKILL)
        finally:
            worker.kill()
    await_containers(lambda: name not in containers())


def await_containers(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + REMOVED_S
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


DRIPS = """
import os, struct, time
def drip():
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, struct.pack(">I", 1 << 20))
            while True:
                os.write(descriptor, b" ")
                time.sleep(0.0002)
        except OSError:
            pass
"""


def test_a_reply_that_never_ends_is_out_of_time(workspace: ContainerWorkspace) -> None:
    with workspace.container.start(Limits(wall_s=1.0)) as process:
        process.load(DRIPS)
        start = time.monotonic()
        assert process.call("drip", []).kind is ReplyKind.TIME
        assert time.monotonic() - start < 30
    assert workspace.exec("echo 1") == "1\n\nexit 0\n"


def test_an_image_with_volumes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of a volume has no limit."""
    fake_runtime(tmp_path, monkeypatch, volumes=1)
    with pytest.raises(EnvironmentFault, match="VOLUME"):
        Container("with-volumes")


def fake_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch, *, volumes: int) -> None:
    """Put a runtime first that has every image and starts no container."""
    runtime = folder / "podman"
    script = f'#!/bin/sh\n[ "$1" = image ] && echo {volumes} && exit\necho "no daemon" >&2\nexit 125\n'
    runtime.write_text(script, encoding="utf-8")
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_missing_image_is_a_fault_that_names_the_remedy() -> None:
    with pytest.raises(EnvironmentFault, match="no/such/image") as fault:
        Container("no/such/image")
    assert "pull no/such/image" in str(fault.value) or "install" in str(fault.value)
    assert failure_of(fault.value).kind.value == "environment"


def test_a_runtime_that_fails_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runtime(tmp_path, monkeypatch, volumes=0)
    with closing(ContainerWorkspace(FILES, "any")) as workspace, pytest.raises(EnvironmentFault, match="no daemon"):
        workspace.exec("true")


def test_an_image_gives_the_model_a_shell() -> None:
    definition = configure_env("workspace", {"image": IMAGE})
    assert definition.generate is not None
    described = [
        env.generate(random.Random(0), 1).tools[0]
        for env in (definition, configure_env("workspace", {}))
        if env.generate
    ]
    assert described[0] != described[1]
    assert not definition.replays


def test_a_demonstration_in_a_container_sees_real_results() -> None:
    task = in_image(bound(generate(random.Random(3), 2), "workspace"))
    before = set(containers())
    env, *dialogue = opened(task), *demonstrate(task)
    with closing(env):
        for turn, result in zip(dialogue[::2], dialogue[1::2], strict=False):
            assert env.step(turn_text(turn, thinks=True))[0] == result["content"]
        assert env.step(turn_text(dialogue[-1], thinks=True))[1] == 1.0
    assert set(containers()) <= before


def test_files_that_commands_change_are_judged() -> None:
    task = in_image(bound(generate(random.Random(1), 1), "workspace"))
    old, new = task.spec["passages"]
    ((path, text),) = task.spec["files"].items()
    code = f"open({path!r}, 'w').write({text.replace(old, new)!r})"
    env = opened(task)
    assert env.step(say("", ("exec", {"command": python(code)}), thinks=True))[0].endswith("exit 0\n")
    assert env.step(say("Done.", thinks=True))[1] == 1.0


FORGED = """
import os, struct
body = b'{"value": 7}'
for descriptor in range(3, 20):
    try:
        os.write(descriptor, (struct.pack(">I", len(body)) + body) * 9)
    except OSError:
        pass
"""


def test_each_process_of_a_container_is_the_only_one(workspace: ContainerWorkspace) -> None:
    """Requests and answers of one process never reach the next one."""
    with workspace.container.start(Limits(wall_s=20.0)) as process:
        process.load(FORGED)
    with workspace.container.start(Limits(wall_s=20.0)) as process:
        assert process.load("def f():\n    return 5\n").value is None
        assert process.call("f", []).value == 5
