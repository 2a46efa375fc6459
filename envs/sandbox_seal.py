"""Locks a Linux process down by raw system calls: limits, namespaces, Landlock, seccomp. Standard library only.

`seal_zygote` is applied once and inherited by every fork: no capabilities, no other uid, no network namespace, read
access to the standard library only (Landlock). `seal_child` is applied in each fork: limits on memory and time, and a
list of the system calls that are allowed; all others fail with EPERM: sockets, fork, exec, signals, ptrace, mounts.
What really holds is probed afterwards by `envs.sandbox_probe`.
"""

import ctypes
import os
import platform
import resource
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 4, 22, 38, 24
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x40000000,
)
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
NOBODY = 65_534
LIBRARY = os.path.dirname(os.__file__)
LANDLOCK_CREATE, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT = 444, 445, 446
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# file-system and network access rights and scopes that each version of the Landlock interface can govern
FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
NET_RIGHTS_FROM, SCOPES_FROM = 4, 6

# fmt: off
ALLOWED = {
    "x86_64": (
        0, 1, 19, 20, 17, 18, 8, 3, 5, 262, 4, 6, 332, 2, 257, 21, 269, 439, 89, 267, 217, 79,  # read .. getcwd
        32, 33, 292, 7, 271, 23, 270,  # dup, dup2, dup3, poll, ppoll, select, pselect6
        9, 11, 25, 10, 28, 12, 202, 449, 273, 334, 324, 24, 204,  # mmap .. brk, futex, rseq, membarrier, sched_*
        13, 14, 15, 131, 38, 36, 37, 35, 230, 228, 229, 96, 201, 100, 98, 318,  # own signals, timers, clocks, getrandom
        39, 110, 186, 102, 107, 104, 108, 115, 111, 121, 124, 63, 99, 219, 60, 231, 95,  # get*id, uname, exit, umask
    ),
    "aarch64": (
        63, 64, 65, 66, 67, 68, 62, 57, 80, 79, 291, 56, 48, 439, 78, 61, 17,
        23, 24, 73, 72,
        222, 215, 216, 226, 233, 214, 98, 449, 99, 293, 283, 124, 123,
        134, 135, 139, 132, 103, 102, 101, 115, 113, 114, 169, 153, 165, 278,
        172, 173, 178, 174, 175, 176, 177, 158, 155, 156, 160, 179, 128, 93, 94, 166,
    ),
}
# calls allowed for some values of their second argument: fcntl without owners and signals, ioctl without async
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
IOCTL_REQUESTS = (0x5401, 0x5413, 0x5450, 0x5451)
CONDITIONAL = {
    "x86_64": ((72, FCNTL_COMMANDS), (16, IOCTL_REQUESTS)),
    "aarch64": ((25, FCNTL_COMMANDS), (29, IOCTL_REQUESTS)),
}
# fmt: on
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, DENY, KILL = 0x7FFF0000, 0x00050001, 0x80000000  # DENY is SECCOMP_RET_ERRNO with EPERM


def _call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, argument: int, what: str) -> None:
    _call(LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), what)


def seal_zygote() -> list[str]:
    """Everything that forks inherit; returns the names of the layers that could be set."""
    layers = []
    steps = {
        "namespaces": _namespaces,
        "no new privileges": _no_new_privileges,
        "uid": _drop_uid,
        "capabilities": _drop_capabilities,
        "limits": _limits,
        "landlock": _landlock,
    }
    for name, step in steps.items():
        try:
            step()
            layers.append(name)
        except OSError as error:
            print(f"sandbox: no {name}: {error}", file=sys.stderr)
    return layers


def _namespaces() -> None:
    """A network, IPC, mount and host-name namespace of its own; without root inside a user namespace."""
    flags = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWUTS
    if os.geteuid() == 0:
        _call(LIBC.unshare(flags), "unshare")
        _move_library()
        return
    uid, gid = os.geteuid(), os.getegid()
    _call(LIBC.unshare(flags | CLONE_NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _move_library() -> None:
    """Mounts the standard library over /tmp: the uid we drop to may not enter the interpreter's folder."""
    none, target = ctypes.c_char_p(b"none"), b"/tmp"
    _call(LIBC.mount(none, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")
    _call(LIBC.mount(LIBRARY.encode(), target, None, ctypes.c_ulong(MS_BIND), None), "bind mount")
    sys.path = [path.replace(LIBRARY, "/tmp") for path in sys.path if path.startswith(LIBRARY)]
    sys.path_importer_cache.clear()


def _no_new_privileges() -> None:
    """No set-uid program gives rights, and no other process may look into this one."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
    _prctl(PR_SET_DUMPABLE, 0, "dumpable")


def _drop_uid() -> None:
    """Another uid where we are root."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _drop_capabilities() -> None:
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    _call(LIBC.capset(header, ctypes.create_string_buffer(24)), "capset")


def _limits() -> None:
    for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 64)):
        resource.setrlimit(kind, (value, value))


def _landlock() -> None:
    """Read access to the standard library, nothing else; no TCP, no abstract sockets, no signals to the outside."""
    abi = _call(LIBC.syscall(LANDLOCK_CREATE, None, 0, 1), "landlock version")
    files = FS_RIGHTS[max(version for version in FS_RIGHTS if version <= abi)]
    attributes = struct.pack("QQQ", files, 3 if abi >= NET_RIGHTS_FROM else 0, 3 if abi >= SCOPES_FROM else 0)
    size = 24 if abi >= SCOPES_FROM else 16 if abi >= NET_RIGHTS_FROM else 8
    ruleset = _call(LIBC.syscall(LANDLOCK_CREATE, ctypes.create_string_buffer(attributes), size, 0), "landlock ruleset")
    for folder in sys.path:
        try:
            descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # the standard library's zip file need not exist
        rule = ctypes.create_string_buffer(struct.pack("=Qi", READ_FILE | READ_DIR, descriptor))
        _call(LIBC.syscall(LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), "landlock rule")
        os.close(descriptor)
    _call(LIBC.syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock restrict")
    os.close(ruleset)


def seccomp_program() -> ctypes.Array[ctypes.c_char]:
    """The filter as the kernel's array of instructions; OSError on a machine whose system calls are not listed."""
    machine = platform.machine()
    if machine not in ALLOWED:
        raise OSError(f"no list of system calls for {machine}")
    code: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
    ]
    for number in ALLOWED[machine]:
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for number, values in CONDITIONAL[machine]:
        tests = [line for value in values for line in ((JUMP_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW))]
        code += [(JUMP_EQUAL, 0, len(tests) + 2, number), (LOAD, 0, 0, 24), *tests, (RETURN, 0, 0, DENY)]
    code.append((RETURN, 0, 0, DENY))
    return ctypes.create_string_buffer(b"".join(struct.pack("HBBI", op, yes, no, k) for op, yes, no, k in code))


def seal_child(*, cpu_s: int, memory_bytes: int, program: ctypes.Array[ctypes.c_char] | None) -> None:
    """The limits of one execution and the system-call filter; OSError where one can't be set."""
    _prctl(PR_SET_PDEATHSIG, 9, "pdeathsig")
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if program is not None:
        _filter(program)


def _filter(program: ctypes.Array[ctypes.c_char]) -> None:
    head = struct.pack("HxxxxxxP", (len(program) - 1) // 8, ctypes.addressof(program))
    buffer = ctypes.create_string_buffer(head)
    _call(LIBC.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_ulong(ctypes.addressof(buffer)), 0, 0), "seccomp")


def seal_library_user(*, memory_bytes: int) -> list[str]:
    """Seals a process that needs its installed libraries but nothing else; returns the layers that could be set."""
    _no_new_privileges()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    layers = []
    for name, step in (("limits", _limits), ("landlock", _landlock), ("seccomp", lambda: _filter(seccomp_program()))):
        try:
            step()
            layers.append(name)
        except OSError as error:
            print(f"sandbox: no {name}: {error}", file=sys.stderr)
    return layers
