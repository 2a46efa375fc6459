"""Output of libraries, native code included, goes to a file. Messages for people reach the screen."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, os, subprocess, sys, warnings
from pathlib import Path
from temper.orchestrator.cli.arguments import set_log_level
from temper.orchestrator.run.driver import noise_to, warnings_to

set_log_level(sys.argv[2] if len(sys.argv) > 2 else None)
print("before")
with noise_to(Path(sys.argv[1])) as screen, warnings_to(lambda text: print("said:", text, file=screen)):
    print("of python")
    os.write(2, b"of another language\\n")
    subprocess.run(["sh", "-c", "echo of a child; echo and its errors >&2"], check=True)
    warnings.warn("deprecated")
    logging.getLogger("library").warning("of a library")
    logging.getLogger("temper.orchestrator.run.checkpoint").warning("a checkpoint is damaged")
    print("for people", file=screen)
print("after")
raise SystemExit("a fault")
"""


def test_noise_goes_to_the_file_and_what_is_for_people_to_the_screen(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    log.parent.mkdir()
    log.write_text("of the run before\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["before", "said: a checkpoint is damaged", "for people", "after"]
    assert done.stderr == "a fault\n"
    written = log.read_text()
    assert written.startswith("of the run before\n")
    for noise in ("of python", "of another language", "of a child", "and its errors", "deprecated", "of a library"):
        assert noise in written
    assert "damaged" not in written


def test_what_we_warn_of_is_said_at_any_level_of_the_loggers(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log), "error"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "said: a checkpoint is damaged" in done.stdout.splitlines()
    assert "of a library" not in log.read_text()
