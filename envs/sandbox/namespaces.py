"""Namespaces of the zygote: a root folder with only the files that programs may read, isolated from everything else.

The zygote gets user, mount, process-id, network, IPC and host-name namespaces once. Every program gets a process-id
namespace (0.1 ms), in which it is process 1 and alone, so that no process outlives it. The others per program would take
0.8 ms and add nothing: programs can write no file, open no socket and use no IPC.

As root, the mounts are made first and the uid is dropped before the user namespace, since a namespace made by root would be
no boundary. Every function raises OSError if the kernel refuses.
"""

import ctypes
import os
import select
from collections.abc import Sequence

from temper.envs.sandbox.seal import LIBC, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, check_call, drop_uid, prctl, try_layer

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
STAGE = "/tmp"
"""The folder in which the new root is assembled, in a separate mount namespace."""
WATCH_MS = 2000
CAP_SYS_ADMIN = 1 << 21


def enter_private_root(folders: Sequence[str]) -> None:
    """Make a read-only root folder with only these folders, at their own paths."""
    _own_mounts()
    opened = [os.open(folder, os.O_PATH) for folder in folders]
    _cover(STAGE)
    for folder, descriptor in zip(folders, opened, strict=True):
        _show(descriptor, STAGE + folder)
    _mount("none", STAGE, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(STAGE)
    check_call(LIBC.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check_call(LIBC.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def uncover(folders: Sequence[str]) -> None:
    """Make folders below a root-only folder, such as root's home, visible to the uid that we drop to."""
    closed = {parent for folder in folders if (parent := _closed_parent(folder))}
    if not closed:
        return
    _own_mounts()
    opened = [os.open(folder, os.O_PATH) for folder in folders]
    for parent in closed:
        _cover(parent)
    for folder, descriptor in zip(folders, opened, strict=True):
        _show(descriptor, folder)


def leave_root(folders: Sequence[str]) -> None:
    """As root, switch to another uid if it can still read these folders. Otherwise print the reason."""
    if os.geteuid() == 0 and try_layer("library for another uid", lambda: uncover(folders)):
        try_layer("other uid", drop_uid)


def _cover(folder: str) -> None:
    """Mount an empty folder over one. Open descriptors can still be mounted in it."""
    os.umask(0o022)
    _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def _show(descriptor: int, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    _mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)
    locked = os.fstatvfs(descriptor).f_flag & MS_NOEXEC
    _mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | locked)
    os.close(descriptor)


def _closed_parent(folder: str) -> str | None:
    parts = folder.strip("/").split("/")
    parents = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
    return next((parent for parent in parents if not os.stat(parent).st_mode & 1), None)


def _own_mounts() -> None:
    if os.geteuid() == 0:
        check_call(LIBC.unshare(CLONE_NEWNS), "unshare of mounts")
    else:
        proc = os.open("/proc", os.O_PATH)
        _user_namespace(CLONE_NEWNS, proc)
        os.close(proc)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def _user_namespace(flags: int, proc: int) -> None:
    """Make a user namespace that maps only our uid and gid, with further namespaces in it. `proc` is a /proc folder."""
    uid, gid = os.geteuid(), os.getegid()
    prctl(PR_SET_DUMPABLE, 1, "dumpable")  # otherwise the maps belong to root; `seal_zygote` reverts it
    check_call(LIBC.unshare(flags | CLONE_NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def enter_namespaces(proc: int) -> int:
    """Make the zygote's namespaces and continue in a fork that is process 1 in them. The caller waits for that fork.

    Return a descriptor of the zygote's process-id namespace for `own_process_ids`. `proc` is a /proc folder.
    """
    parent = os.getppid()
    _user_namespace(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, proc)
    check_call(LIBC.sethostname(b"sandbox", 7), "sethostname")
    pid = os.fork()
    if pid:
        _watch(pid, parent)
    prctl(PR_SET_PDEATHSIG, 9, "pdeathsig")
    return os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)


def _watch(pid: int, parent: int) -> None:
    """Wait until the zygote or our parent has ended, then exit, which ends the zygote too."""
    os.closerange(0, 64)
    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    while not poll.poll(WATCH_MS) and os.getppid() == parent:
        pass
    os._exit(1)


def own_process_ids(zygotes: int) -> None:
    """Make the next fork process 1 of a new process-id namespace."""
    check_call(LIBC.setns(zygotes, CLONE_NEWPID), "setns")
    check_call(LIBC.unshare(CLONE_NEWPID), "unshare of process ids")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    check_call(LIBC.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"mount on {target}")
