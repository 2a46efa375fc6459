"""The system-call filter, interpreted here as the kernel does."""

import errno
import struct

import pytest

from temper.envs.sandbox import seal as seal

OTHER_ARCHITECTURE = 0x40000003
"""32-bit x86."""


def filter_result(code: bytes, *, number: int, argument: int, architecture: int, first: int = 0) -> int:
    """Return the filter's result for a call with these first two arguments."""
    data, accumulator, at = {0: number, 4: architecture, 16: first, 24: argument}, 0, 0
    while True:
        operation, yes, no, operand = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        if operation == seal.LOAD:
            accumulator = data[operand]
        elif operation == seal.RETURN:
            return int(operand)
        else:
            holds = accumulator == operand if operation == seal.JUMP_EQUAL else accumulator >= operand
            at += yes if holds else no


@pytest.mark.parametrize("machine", seal.ALLOWED)
def test_the_filter_allows_what_is_listed_and_nothing_else(machine: str) -> None:
    code, architecture = bytes(seal.seccomp_filter(machine)), seal.AUDIT_ARCH[machine]
    conditions = {number: values for number, _, values in seal.CONDITIONAL[machine]}
    for number in [*range(1000), 0x40000000, 0x40000027, 2**32 - 1]:
        for argument in (0, 1, 4, 5, 8, 0x80, 1030, 0x5401, 0x5421, 0x80800, 2**32 - 1):
            allowed = number in seal.ALLOWED[machine] or argument in conditions.get(number, ())
            said = filter_result(code, number=number, argument=argument, architecture=architecture)
            assert said == (seal.ALLOW if allowed else seal.DENY), (number, argument)


@pytest.mark.parametrize("machine", seal.ALLOWED)
def test_a_filter_with_threads_allows_clone_only_for_threads(machine: str) -> None:
    code, architecture = bytes(seal.seccomp_filter(machine, threads=True)), seal.AUDIT_ARCH[machine]
    thread = 0x3D0F00  # CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID
    for first in (0, 17, 0x4111, thread, *(thread ^ (1 << bit) for bit in range(32))):
        said = filter_result(code, number=seal.CLONE[machine], argument=0, architecture=architecture, first=first)
        assert said == (seal.ALLOW if first in (thread, thread | 0x400000) else seal.DENY), hex(first)
    assert filter_result(code, number=435, argument=88, architecture=architecture) == 0x50000 | errno.ENOSYS


@pytest.mark.parametrize("machine", seal.ALLOWED)
def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    code = bytes(seal.seccomp_filter(machine))
    assert filter_result(code, number=0, argument=0, architecture=OTHER_ARCHITECTURE) == seal.KILL


def test_a_machine_whose_calls_are_not_listed_is_refused() -> None:
    with pytest.raises(OSError, match="s390x"):
        seal.seccomp_filter("s390x")
