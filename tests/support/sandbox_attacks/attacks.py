"""Programs that try to get out of the sandbox: files, other processes, the network, the kernel.

Each function is an attack, sent into the sandbox with this whole file as the program's source. Never call one outside.
On success it returns something true, or the secret itself. The hints are facts that an attacker could know. `file` is
hidden and holds the secret, `folder` is another episode's and open to all, and `name` is for leftovers. `variable` holds the
secret too, and `pids` are the trainer and the zygote. Sockets listen at `host`, `tcp`, `udp`, `abstract` and `path`.
"""

import ctypes
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
# fmt: off
CALLS = {  # number on x86_64, on aarch64
    "execve": (59, 221), "fork": (57, 220), "vfork": (58, 220), "clone": (56, 220), "clone3": (435, 435),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "process_vm_readv": (310, 270), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "prctl": (157, 167), "seccomp": (317, 277),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51), "pivot_root": (155, 41),
    "unshare": (272, 97), "setns": (308, 268), "kcmp": (312, 272), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "inotify_init1": (294, 26), "init_module": (175, 105),
    "kexec_load": (246, 104), "reboot": (169, 142), "sethostname": (170, 161), "settimeofday": (164, 170),
    "syslog": (103, 116), "acct": (163, 89), "swapon": (167, 224), "personality": (135, 92), "mlockall": (151, 230),
    "setuid": (105, 146), "capset": (126, 91), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "open_tree": (428, 428), "fsopen": (430, 430), "ptrace": (101, 117), "landlock": (444, 444),
    "sched_setaffinity": (203, 122), "setpriority": (141, 140), "memfd_create": (319, 279), "move_pages": (279, 239),
}
# fmt: on
FOLDERS = (".", "/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue", os.path.dirname(os.__file__))
NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "uts": 0x4000000}
Hint = dict[str, Any]


def _worked(*actions: Callable[[], Any]) -> list[int]:
    """Return the indices of the actions that succeed."""
    numbers = []
    for number, action in enumerate(actions):
        try:
            action()
            numbers.append(number)
        except Exception:
            continue
    return numbers


def _call(name: str, *arguments: Any) -> int:
    """Make a raw system call."""
    result = int(LIBC.syscall(CALLS[name][ARM], *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def _everywhere(hint: Hint) -> list[str]:
    return [os.path.join(folder, hint["name"]) for folder in (*FOLDERS, hint["folder"])]


def fills_the_disk(hint: Hint) -> Any:
    def fill(path: str) -> None:
        with open(path, "wb") as file:
            for _ in range(4096):
                file.write(bytes(2**20))

    return _worked(*(lambda path=path: fill(path) for path in _everywhere(hint)))


def fills_the_inodes(hint: Hint) -> Any:
    makers = (
        os.mkdir,
        os.mkfifo,
        os.mknod,
        lambda path: os.symlink("x", path),
        lambda path: os.link(hint["file"], path),
    )
    return _worked(*(lambda m=maker, path=path: m(path) for maker in makers for path in _everywhere(hint)))


def writes_to_shared_memory(hint: Hint) -> Any:
    path = f"/dev/shm/{hint['name']}"
    return _worked(
        lambda: os.open(path, os.O_CREAT | os.O_RDWR), lambda: _call("shmget", 0, 4096, 0o1600),
        lambda: _call("mq_open", hint["name"].encode(), 0o102, 0o600, None), lambda: _call("msgget", 0, 0o1600),
        lambda: _call("semget", 0, 1, 0o1600), lambda: os.memfd_create("x"), lambda: _call("memfd_create", b"x", 0),
    )  # fmt: skip


def makes_an_unnamed_file(hint: Hint) -> Any:
    return _worked(*(lambda f=folder: os.open(f, os.O_TMPFILE | os.O_RDWR) for folder in (*FOLDERS, hint["folder"])))


def makes_an_undeletable_folder(hint: Hint) -> Any:
    def make(path: str) -> None:
        os.makedirs(path + "/x" * 50)
        os.chmod(path, 0)

    return _worked(*(lambda path=path: make(path) for path in _everywhere(hint)))


def changes_a_file(hint: Hint) -> Any:
    path = hint["file"]
    return _worked(
        lambda: open(path, "a"), lambda: os.truncate(path, 0), lambda: os.unlink(path), lambda: os.chmod(path, 0),
        lambda: os.rename(path, path + "x"), lambda: os.utime(path, (0, 0)), lambda: os.setxattr(path, "user.x", b""),
    )  # fmt: skip


def changes_the_standard_library(hint: Hint) -> Any:
    path = os.path.join(os.path.dirname(os.__file__), "colorsys.py")
    with open(path) as file:
        return _worked(
            lambda: open(path, "a"), lambda: os.truncate(path, 0), lambda: os.chmod(path, 0), lambda: os.unlink(path),
            lambda: fcntl.flock(file, fcntl.LOCK_EX), lambda: fcntl.lockf(file, fcntl.LOCK_SH),
        )  # fmt: skip


def reads_the_passwords(hint: Hint) -> Any:
    return _worked(*(lambda name=name: open(f"/etc/{name}").read() for name in ("passwd", "shadow", "hostname")))


def reads_the_hidden_tests(hint: Hint) -> Any:
    with open(hint["file"]) as file:
        return file.read()


def reads_another_scratch(hint: Hint) -> Any:
    return _worked(*(lambda folder=folder: os.listdir(folder) for folder in (hint["folder"], "/tmp", "/", "/proc")))


def reads_through_open_descriptors(hint: Hint) -> Any:
    """Follow a folder or a file that is still open."""

    def ways(number: int) -> list[Callable[[], Any]]:
        return [
            lambda: os.listdir(number), lambda: os.open("etc/passwd", 0, dir_fd=number), lambda: os.fchdir(number),
            lambda: os.open("../" * 20 + "etc/passwd", 0, dir_fd=number),
        ]  # fmt: skip

    return _worked(*(way for number in range(300) for way in ways(number)))


def reads_its_own_environment(hint: Hint) -> Any:
    return os.environ.get(hint["variable"]) or _worked(lambda: open("/proc/self/environ").read())


def reads_its_parents_environment(hint: Hint) -> Any:
    pids = (os.getppid(), 1, *hint["pids"])
    return _worked(*(lambda pid=pid: open(f"/proc/{pid}/environ").read() for pid in pids))


def reads_the_memory_of_others(hint: Hint) -> Any:
    buffer = ctypes.create_string_buffer(64)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)

    def ways(pid: int) -> list[Callable[[], Any]]:
        return [
            lambda: os.open(f"/proc/{pid}/mem", 0), lambda: os.open(f"/proc/{pid}/maps", 0),
            lambda: _call("process_vm_readv", pid, vector, 1, vector, 1, 0),
            lambda: _call("pidfd_getfd", _call("pidfd_open", pid, 0), 0, 0),
            lambda: _call("kcmp", os.getpid(), pid, 0, 0, 0), lambda: _call("move_pages", pid, 0, 0, 0, 0, 0),
        ]  # fmt: skip

    return _worked(*(way for pid in (os.getppid(), 1, *hint["pids"]) for way in ways(pid)))


def traces_others(hint: Hint) -> Any:
    attach, seize, traceme = 16, 0x4206, 0
    return _worked(
        lambda: _call("ptrace", traceme, 0, 0, 0),
        *(lambda pid=pid, how=how: _call("ptrace", how, pid, 0, 0) for pid in hint["pids"] for how in (attach, seize)),
    )


def finds_files(hint: Hint) -> Any:
    """Find out only whether a file exists, its size, and the target of a link."""
    return _worked(lambda: os.stat(hint["file"]), lambda: os.readlink("/proc/self/fd/0"))


def sees_processes(hint: Hint) -> Any:
    return os.getppid() > 0 or _worked(*(lambda pid=pid: os.stat(f"/proc/{pid}") for pid in hint["pids"]))


def sees_the_host_name(hint: Hint) -> Any:
    return os.uname().nodename == hint["host"]


def connects_by_tcp(hint: Hint) -> Any:
    return _worked(lambda: socket.create_connection(("127.0.0.1", hint["tcp"]), 1).send(b"x"), lambda: socket.socket())


def sends_by_udp(hint: Hint) -> Any:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", hint["udp"]))


def connects_to_unix_sockets(hint: Hint) -> Any:
    return _worked(
        *(lambda at=at: socket.socket(socket.AF_UNIX).connect(at) for at in (hint["abstract"], hint["path"]))
    )


def opens_other_sockets(hint: Hint) -> Any:
    families = [(family, kind) for family in (1, 2, 10, 16, 17, 38, 40) for kind in (1, 2, 3, 5)]
    return _worked(
        lambda: __import__("_socket").socketpair(), *(lambda f=f, k=k: socket.socket(f, k) for f, k in families)
    )


def asks_the_channel_for_its_peer(hint: Hint) -> Any:
    return LIBC.getsockopt(3, 1, 17, ctypes.create_string_buffer(12), ctypes.byref(ctypes.c_int(12))) == 0


def passes_a_descriptor_out(hint: Hint) -> Any:
    """Send a descriptor along, so that the reader reads something else or runs out of descriptors."""
    message = (ctypes.c_size_t * 7)(*([0] * 7))
    return LIBC.sendmsg(3, message, 0) >= 0 or LIBC.recvmsg(3, message, 64) >= 0


def uses_io_uring(hint: Hint) -> Any:
    return _call("io_uring_setup", 8, ctypes.create_string_buffer(256))


def makes_forbidden_calls(hint: Hint) -> Any:
    harmless = [name for name in CALLS if name not in ("fork", "vfork", "clone", "reboot", "kill", "tkill", "tgkill")]
    return _worked(*(lambda name=name: _call(name, 0, 0, 0, 0, 0) for name in harmless))


def makes_calls_of_another_architecture(hint: Hint) -> Any:
    """Call the 32-bit `getpid` (int 0x80), unknown to a filter for 64-bit calls, and x32 calls."""
    if _worked(lambda: LIBC.syscall(0x40000000 + 39) > 0 or 1 / 0) or ARM:
        return not ARM
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() > 0


def kills_its_parent(hint: Hint) -> Any:
    return _worked(
        *(lambda pid=pid: os.kill(pid, signal.SIGKILL) for pid in (os.getppid(), hint["pids"][1]) if pid > 1)
    )


def stops_its_parent(hint: Hint) -> Any:
    return _worked(lambda: os.kill(hint["pids"][1], signal.SIGSTOP))


def kills_everything(hint: Hint) -> Any:
    return _worked(
        lambda: os.kill(-1, signal.SIGCONT), lambda: os.killpg(0, signal.SIGCONT), lambda: _call("kill", -1, 18)
    )


def signals_by_other_calls(hint: Hint) -> Any:
    pid = hint["pids"][1]
    return _worked(
        lambda: _call("tkill", pid, 18), lambda: _call("tgkill", pid, pid, 18),
        lambda: _call("rt_sigqueueinfo", pid, 18, ctypes.create_string_buffer(128)),
        lambda: _call("pidfd_send_signal", _call("pidfd_open", pid, 0), 18, 0, 0),
        lambda: fcntl.fcntl(3, fcntl.F_SETOWN, pid), lambda: fcntl.fcntl(3, 10, 9),
    )  # fmt: skip


def starts_a_shell(hint: Hint) -> Any:
    return _worked(
        lambda: os.execv("/bin/sh", ["sh", "-c", "true"]), lambda: subprocess.run(["/bin/sh", "-c", "true"]),
        lambda: os.posix_spawn("/bin/sh", ["sh", "-c", "true"], {}), lambda: os.system("true") == 0 or 1 / 0,
        lambda: _call("execve", b"/bin/sh", None, None),
    )  # fmt: skip


def nests_namespaces(hint: Hint) -> Any:
    return _worked(*(lambda flag=flag: _call("unshare", flag) for flag in NAMESPACES.values()))


def bombs_with_forks(hint: Hint) -> Any:
    ways = (
        os.fork,
        lambda: _call("fork"),
        lambda: _call("clone", 17, 0, 0, 0, 0),
        lambda: _call("clone3", b"\0" * 88, 88),
    )
    return any(_worked(*ways) for _ in range(1000))


def forks_as_a_thread(hint: Hint) -> Any:
    """Fork by flags that nearly equal a thread's."""
    thread = 0x3D0F00
    others = (thread & ~0x10000, thread & ~0x10900, thread | 0x4000, thread | 0x8000, thread | 0x10000000, 0x4111)
    return _worked(*(lambda flags=flags: _call("clone", flags, 0, 0, 0, 0) for flags in others), os.fork)


def raises_its_limits(hint: Hint) -> Any:
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    return _worked(
        *(lambda kind=kind: resource.setrlimit(kind, (-1, -1)) for kind in kinds),
        *(lambda kind=kind: resource.prlimit(hint["pids"][1], kind, (0, 0)) for kind in kinds), lambda: os.nice(-5),
    )  # fmt: skip
