"""Restrict a Linux process by raw system calls: limits, capabilities, Landlock, seccomp. Standard library only.

`seal_zygote` runs once, and every fork inherits it: no capabilities, read access to the standard library only (Landlock),
no write access. `seal_child` runs in each fork: limits on memory and time, and a list of allowed system calls. All others
fail with EPERM: sockets, fork, exec, signals, ptrace, mounts. A filter with `threads` also allows `clone` with the flags of
a thread, which `temper.envs.sandbox.thread_limit` counts. `temper.envs.sandbox.namespaces` makes the namespaces.
`temper.envs.sandbox.probe` then verifies the result.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 4, 22, 38, 24
NOBODY = 65_534
MACHINE = platform.machine()
Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand
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
        39, 110, 186, 102, 107, 104, 108, 115, 111, 63, 99, 219, 60, 231, 95,  # get*id, uname, exit, umask
    ),
    "aarch64": (
        63, 64, 65, 66, 67, 68, 62, 57, 80, 79, 291, 56, 48, 439, 78, 61, 17,
        23, 24, 73, 72,
        222, 215, 216, 226, 233, 214, 98, 449, 99, 293, 283, 124, 123,
        134, 135, 139, 132, 103, 102, 101, 115, 113, 114, 169, 153, 165, 278,
        172, 173, 178, 174, 175, 176, 177, 158, 160, 179, 128, 93, 94, 166,
    ),
}
# calls allowed for some values of one argument: fcntl without owners and signals, ioctl without async, plain pipes
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
IOCTL_REQUESTS = (0x5401, 0x5413, 0x5450, 0x5451)
PIPE_FLAGS = (0, 0x800, 0x80000, 0x80800)
CONDITIONAL = {
    "x86_64": ((72, 1, FCNTL_COMMANDS), (16, 1, IOCTL_REQUESTS), (293, 1, PIPE_FLAGS)),
    "aarch64": ((25, 1, FCNTL_COMMANDS), (29, 1, IOCTL_REQUESTS), (59, 1, PIPE_FLAGS)),
}
CLONE = {"x86_64": 56, "aarch64": 220}
UNSHARE = {"x86_64": 272, "aarch64": 97}
CLONE3, IO_URING_SETUP = 435, 425
CLONE_NEWUSER, X32 = 0x10000000, 0x40000000
THREAD_FLAGS = (0x3D0F00, 0x7D0F00)  # flags of a thread, with CLONE_VM and CLONE_THREAD: glibc, musl
# fmt: on
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, DENY, KILL, NOTIFY = 0x7FFF0000, 0x00050001, 0x80000000, 0x7FC00000  # DENY is SECCOMP_RET_ERRNO with EPERM
UNKNOWN = 0x00050026  # with ENOSYS, so that the C library falls back on an older call
FILES, ZYGOTE_FILES = 64, 4096  # descriptors


# made once, otherwise each fork makes classes for them
CAPABILITY_HEADER = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
NO_CAPABILITIES = ctypes.create_string_buffer(24)


def check_call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, argument: int, what: str) -> None:
    check_call(LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), what)


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, "pdeathsig")


def seal_zygote(folders: Sequence[str], *, keep: int = 0, files: int = FILES) -> list[str]:
    """Set everything that forks inherit. Return the names of the layers that were set.

    The folders stay readable. `keep` is a mask of the capabilities that the zygote still needs, `files` its limit of
    descriptors.
    """
    steps = {
        "no new privileges": no_new_privileges,
        "capabilities": lambda: drop_capabilities(keep),
        "limits": lambda: _limits(files),
        "landlock": lambda: _landlock(folders),
    }
    return [name for name, step in steps.items() if try_layer(name, step)]


def try_layer(name: str, step: Callable[[], None]) -> bool:
    """Set one layer, or print to standard error that the kernel refuses."""
    try:
        step()
    except OSError as error:
        print(f"sandbox: no {name}: {error}", file=sys.stderr)
        return False
    return True


def no_new_privileges() -> None:
    """Block rights from set-uid programs, and inspection by other processes."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
    prctl(PR_SET_DUMPABLE, 0, "dumpable")


def drop_uid() -> None:
    """Change from root to another uid, without capabilities to regain."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def drop_capabilities(keep: int = 0) -> None:
    sets = ctypes.create_string_buffer(struct.pack("6I", keep, keep, 0, 0, 0, 0)) if keep else NO_CAPABILITIES
    check_call(LIBC.capset(CAPABILITY_HEADER, sets), "capset")


def _limits(files: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = files if hard == resource.RLIM_INFINITY else min(files, hard)
    for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, files)):
        resource.setrlimit(kind, (value, value))


def _landlock(folders: Sequence[str]) -> None:
    """Allow read access to these folders only. Block TCP, abstract sockets and signals to the outside."""
    abi = check_call(LIBC.syscall(LANDLOCK_CREATE, None, 0, 1), "landlock version")
    files = FS_RIGHTS[max(version for version in FS_RIGHTS if version <= abi)]
    attributes = struct.pack("QQQ", files, 3 if abi >= NET_RIGHTS_FROM else 0, 3 if abi >= SCOPES_FROM else 0)
    size = 24 if abi >= SCOPES_FROM else 16 if abi >= NET_RIGHTS_FROM else 8
    ruleset = check_call(
        LIBC.syscall(LANDLOCK_CREATE, ctypes.create_string_buffer(attributes), size, 0), "landlock ruleset"
    )
    for folder in folders:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", READ_FILE | READ_DIR, descriptor))
        check_call(LIBC.syscall(LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), "landlock rule")
        os.close(descriptor)
    check_call(LIBC.syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock restrict")
    os.close(ruleset)


def seccomp_filter(machine: str = MACHINE, *, threads: bool = False) -> ctypes.Array[ctypes.c_char]:
    """Return the filter as the kernel's array of instructions. Raise `OSError` if a machine's calls are not listed.

    Numbers are found by binary search, which the kernel prepares in half the time of a chain of comparisons.
    """
    if machine not in ALLOWED:
        raise OSError(f"no list of system calls for {machine}")
    allowed = {number: [(RETURN, 0, 0, ALLOW)] for number in ALLOWED[machine]}
    conditional = {number: _argument_check(index, values) for number, index, values in CONDITIONAL[machine]}
    leaves = {**allowed, **conditional}
    if threads:
        leaves |= {CLONE[machine]: _argument_check(0, THREAD_FLAGS), CLONE3: [(RETURN, 0, 0, UNKNOWN)]}
    denied = [(RETURN, 0, 0, DENY)]
    ranges: list[tuple[int, list[Instruction]]] = []
    for number in range(max(leaves) + 2):
        leaf = leaves.get(number, denied)
        if not ranges or ranges[-1][1] != leaf:
            ranges.append((number, leaf))
    code = [
        (LOAD, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
        *_lookup(ranges),
    ]
    return assemble(code)


def assemble(code: Sequence[Instruction]) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(b"".join(struct.pack("HBBI", op, yes, no, k) for op, yes, no, k in code))


def _argument_check(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Return the instructions that allow a call for some values of an argument, by its lower half."""
    tests = [(JUMP_EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]
    return [(LOAD, 0, 0, 16 + 8 * index), *tests, (RETURN, 0, 0, DENY), (RETURN, 0, 0, ALLOW)]


def _lookup(ranges: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return the instructions that find the range of a number, by the first numbers of the ranges."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _lookup(ranges[:middle]), _lookup(ranges[middle:])
    return [(JUMP_AT_LEAST, len(below), 0, ranges[middle][0]), *below, *above]


def seal_child(*, cpu_s: int, memory_bytes: int, seccomp: ctypes.Array[ctypes.c_char] | None) -> None:
    """Set the limits of one execution and the system-call filter. Raise `OSError` if one can't be set."""
    drop_capabilities()
    prctl(PR_SET_PDEATHSIG, 9, "pdeathsig")
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    if seccomp is not None:
        _install(seccomp)


def refuse_user_namespaces(machine: str = MACHINE) -> None:
    """Make `unshare` and `clone` refuse user namespaces, which open much of the kernel, and hide io_uring. Inherited."""
    if machine not in CLONE:
        raise OSError(f"no list of system calls for {machine}")
    code = [
        *((LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)),
        *((JUMP_EQUAL, 5, 0, CLONE3), (JUMP_EQUAL, 4, 0, IO_URING_SETUP)),
        *((JUMP_EQUAL, 4, 0, CLONE[machine]), (JUMP_EQUAL, 3, 0, UNSHARE[machine]), (JUMP_AT_LEAST, 5, 0, X32)),
        *((RETURN, 0, 0, ALLOW), (RETURN, 0, 0, UNKNOWN)),
        *((LOAD, 0, 0, 16), (JUMP_IF_SET, 1, 0, CLONE_NEWUSER), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)),
    ]
    _install(assemble(code))


def to_sock_fprog(seccomp: ctypes.Array[ctypes.c_char]) -> ctypes.Array[ctypes.c_char]:
    """Return the kernel's `sock_fprog` of a filter, which must outlive it."""
    return ctypes.create_string_buffer(struct.pack("HxxxxxxP", (len(seccomp) - 1) // 8, ctypes.addressof(seccomp)))


def _install(seccomp: ctypes.Array[ctypes.c_char]) -> None:
    buffer = to_sock_fprog(seccomp)
    check_call(LIBC.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_ulong(ctypes.addressof(buffer)), 0, 0), "seccomp")


def seal_library_user(*, memory_bytes: int) -> list[str]:
    """Seal a process that needs only its installed libraries. Return the layers that were set."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    return [*seal_zygote(library_folders()), *["seccomp"] * try_layer("seccomp", lambda: _install(seccomp_filter()))]


def library_folders() -> list[str]:
    """Return the existing folders of `sys.path` that are not inside one another."""
    folders = [os.path.realpath(folder) for folder in sys.path if folder and os.path.isdir(folder)]
    return [f for f in dict.fromkeys(folders) if not any(f.startswith(f"{other}/") for other in folders)]
