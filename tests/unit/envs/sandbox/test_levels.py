"""The level of the sandbox: measured, reported, never lowered later, and the same without root."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from temper.envs.core.errors import SandboxError
from temper.envs.sandbox.probe import GROUPS
from temper.envs.sandbox.sandbox import Sandbox
from temper.envs.sandbox.sealed_process import Limits, ReplyKind

ROOT = Path(__file__).parents[4]
PROGRAM = """
import logging
logging.basicConfig()
from temper.envs.sandbox.sealed_process import Limits
from temper.envs.sandbox.sandbox import Sandbox
sandbox = Sandbox()
print(sandbox.run_main("import colorsys\\nprint(6 * 7)", "", Limits()).value)
print(sandbox.isolation.line())
"""


def python_for_others() -> str | None:
    """Return an interpreter of our version or later that every user may run."""
    found = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if found is None:
        return None
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    tried = subprocess.run([found, "-c", version], user=4321, group=4321, extra_groups=[], cwd="/")
    return found if tried.returncode == 0 else None


def can_make_namespaces() -> bool:
    try:
        sandbox = Sandbox(min_level=3)
        sandbox.warm()
    except SandboxError:
        return False
    sandbox.close()
    return True


def test_a_lower_level_can_be_asked_for() -> None:
    sandbox = Sandbox(min_level=2, max_level=2)
    sandbox.warm()
    assert sandbox.isolation is not None
    assert sandbox.isolation.level == 2
    assert set(sandbox.isolation.succeeded) == set(GROUPS[2])
    assert "level 2 of 3" in sandbox.isolation.line()
    assert "NOT STOPPED: find_files, see_processes, see_host" in sandbox.isolation.line()
    sandbox.close()


def test_a_level_once_reached_is_kept() -> None:
    sandbox = Sandbox()
    first = sandbox.warm()
    assert sandbox.isolation is not None
    if sandbox.isolation.level < 3:
        pytest.skip("this machine makes no namespaces for us")
    sandbox.max_level = 2
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    with pytest.raises(SandboxError, match="level 2 of 3"):
        sandbox.attempt(lambda box: box.run_main("print(1)", "", Limits()))


def test_without_namespaces_the_level_is_2_with_a_warning() -> None:
    if not can_make_namespaces():
        pytest.skip("this machine makes no namespaces, also not to forbid them in")
    command = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    unshare = ["unshare", "--user", "--map-root-user", "sh", "-c", command, "sh", sys.executable, "-c", PROGRAM]
    done = subprocess.run(unshare, cwd=ROOT, capture_output=True, text=True)
    if "max_user_namespaces" in done.stderr:
        pytest.skip(f"user namespaces can't be forbidden here: {done.stderr}")
    assert done.stdout.splitlines()[0] == "42", done.stderr
    assert "sandbox level 2 of 3" in done.stdout
    assert "WARNING:temper.envs.sandbox.sandbox:the sandbox can't make namespaces" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; all other tests are such a run")
def test_a_user_without_rights_reaches_the_same_level() -> None:
    python = python_for_others()
    if python is None:
        pytest.skip("there is no interpreter of version 3.11 that other users may run")
    done = subprocess.run(
        [python, "-B", "-c", PROGRAM],
        cwd=ROOT,
        env={"PYTHONPATH": ".types"},
        user=4321,
        group=4321,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[0] == "42", done.stderr
    assert f"sandbox level {3 if can_make_namespaces() else 2} of 3" in done.stdout


def test_a_zygote_of_either_level_takes_its_programs_along() -> None:
    for level in (2, 3):
        sandbox = Sandbox(min_level=2, max_level=level)
        with sandbox.start(Limits(wall_s=30.0)) as program:
            assert program.load("x = 1").kind is ReplyKind.VALUE
            os.kill(program.zygote.pid, signal.SIGKILL)
            assert program.channel.recv(1) == b""
        sandbox.close()
