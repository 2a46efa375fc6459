"""The seals of the grading processes: probed by them, enforced by us, and reported if weak."""

import json
import os
import subprocess
import sys
from pathlib import Path

from temper.envs.mathematics.grader import MathGrader
from temper.envs.puzzles.library import Origin, PuzzleLibrary

ROOT = Path(__file__).parents[4]
WITHOUT_LANDLOCK = """
import ctypes, json, logging, os, struct
from temper.envs.sandbox import seal as seal
from temper.envs.core.errors import GraderError
from temper.envs.mathematics.grader import MathGrader
from temper.envs.sandbox.seal_probe import probe_seal

logging.basicConfig()
print(json.dumps(probe_seal(memory_bytes=2**20)))
create_ruleset = ((0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050026), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", op, yes, no, k) for op, yes, no, k in create_ruleset))
head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(create_ruleset), ctypes.addressof(code)))
seal.prctl(seal.PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
seal.check_call(seal.LIBC.prctl(seal.PR_SET_SECCOMP, 2, ctypes.c_ulong(ctypes.addressof(head)), 0, 0), "seccomp")
grader = MathGrader()
try:
    grader.is_equal(reference="x+1", answer="1+x")
except GraderError as error:
    print(error)
os.environ["TEMPER_SANDBOX_MIN_LEVEL"] = "1"
print(grader.is_equal(reference="x+1", answer="1+x"))
grader.close()
"""
"""A process, and all its children, for which the kernel has no Landlock (ENOSYS), as before 5.13."""


def uid_of(process: int) -> int:
    """Return the effective uid of a process."""
    line = next(
        line for line in Path(f"/proc/{process}/status").read_text("utf-8").splitlines() if line.startswith("Uid")
    )
    return int(line.split()[2])


def test_the_math_grader_tries_its_seal_and_is_not_root() -> None:
    grader = MathGrader()
    assert grader.is_equal(reference="x+1", answer="1+x") is True
    (worker,) = grader.idle
    assert (worker.seal["level"], worker.seal["not_stopped"]) == (2, [])
    assert grader.mother is not None
    assert worker.seal["uid"] == uid_of(grader.mother.pid)
    assert os.geteuid() != 0 or worker.seal["uid"] != 0
    grader.close()


def test_reasoning_gyms_process_tries_its_seal_and_is_not_root() -> None:
    library = PuzzleLibrary()
    assert library.make(Origin(dataset="leg_counting", config={}, seed=5)).question
    found = library.process.ready["seal"]
    assert (found["level"], found["not_stopped"]) == (2, [])
    assert os.geteuid() != 0 or found["uid"] != 0
    library.process.close()


def test_without_landlock_grading_is_refused_or_warned_of() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], cwd=ROOT, text=True, capture_output=True, timeout=120, check=True
    )
    unsealed, refused, equal = done.stdout.splitlines()
    assert json.loads(unsealed)["level"] == 0
    assert {"fork", "network", "signal", "read_files"} <= set(json.loads(unsealed)["not_stopped"])
    assert refused.startswith(
        "the process of math-verify is of sandbox level 1 of 2, NOT STOPPED: read_files, list_files; use"
    )
    assert refused.endswith("sandbox.min_level=1")
    assert equal == "True"
    assert "WARNING:temper.envs.sandbox.seal_probe:the process of math-verify is of sandbox level 1" in done.stderr
