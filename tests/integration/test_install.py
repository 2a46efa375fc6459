"""`requirements/install.sh` on simulated machines: its output, requests and omissions. Nothing is installed.

Each test has a separate PATH. It holds links to shell tools and scripts that replace Python,
uv, nvidia-smi and nvcc. The scripts record their calls.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
TOOLS = (
    "bash",
    "cat",
    "chmod",
    "cmp",
    "cp",
    "dirname",
    "grep",
    "head",
    "ln",
    "mkdir",
    "rm",
    "sed",
    "sha256sum",
    "tail",
    "uname",
)
OLD, NEW = "550.54.15", "580.65.06"

PYTHON = """
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$BIN/uv-of-venv" "$3/bin/uv" ;;
    "-c import importlib.metadata"*) exit 1 ;;
esac
"""
OTHER_PYTHON = """
case "$1" in
    -c) exit 1 ;;
    -m) [ "$2" = pip ] || exit 1; mkdir -p .venv/fetch/bin; cp "$BIN/uv-fetched" .venv/fetch/bin/uv ;;
esac
"""
UV_FETCHED = """
mkdir -p .venv/bin .venv/python
cp "$BIN/uv-of-venv" .venv/bin/uv
cp "$BIN/made-python" .venv/bin/python
"""


@dataclass
class Machine:
    """A folder with the repository's requirements and the programs of its PATH."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "bin").mkdir()
        shutil.copytree(REQUIREMENTS, self.root / "requirements")
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.root / "bin" / tool).symlink_to(found)
        self.program("uv-of-venv", "")

    def program(self, name: str, script: str) -> None:
        """Put a program into PATH that logs its name, its arguments and two variables that the installation sets."""
        path = self.root / "bin" / name
        read = "${DS_IGNORE_CUDA_DETECTION:+detection-ignored}${MLFLOW_DISABLE_TELEMETRY:+ silent}"
        say = f'echo "{name} $* {read}" >>"$LOG"\n'
        path.write_text(f"#!{self.root}/bin/bash\n{say}{script}\n")
        path.chmod(0o755)

    def gpu(self, driver: str) -> None:
        """Give it a GPU with this driver."""
        self.program("nvidia-smi", f'[ $# = 0 ] || echo "{driver}"')

    def nvcc(self, release: str) -> None:
        """Give it a CUDA toolkit."""
        self.program("nvcc", f'echo "Cuda compilation tools, release {release}, V{release}.1"')

    def setup(self, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        own = {"PATH": f"{self.root}/bin", "BIN": f"{self.root}/bin", "LOG": f"{self.root}/log"}
        return subprocess.run(
            [f"{self.root}/bin/bash", "requirements/install.sh"],
            cwd=self.root,
            env=own | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, of: str) -> list[str]:
        """Return how a program was called."""
        log = self.root / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(f"{of} ")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(root=tmp_path)
    made.program("python3.11", PYTHON)
    return made


def test_without_a_gpu_the_cpu_stack_is_installed_once(machine: Machine) -> None:
    done = machine.setup()
    assert (done.returncode, done.stderr) == (0, "")
    assert "installing the cpu stack" in done.stdout
    assert any(call.endswith("--editable . ") for call in machine.calls("uv-of-venv"))
    assert not any("mamba" in call or "fused" in call for call in machine.calls("uv-of-venv"))
    compiling = next(call for call in machine.calls("python3.11") if "compileall" in call)
    assert " -W ignore " in compiling  # what libraries' code is warned of is for their makers
    (machine.root / "log").unlink()
    assert machine.setup().stdout == ""
    assert not (machine.root / "log").exists()


@pytest.mark.parametrize(("system", "architecture"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_another_platform_is_told_before_anything_is_done(system: str, architecture: str, machine: Machine) -> None:
    (machine.root / "bin" / "uname").unlink()
    machine.program("uname", f'[ "$1" = -s ] && echo {system} || echo {architecture}')
    done = machine.setup()
    assert done.returncode == 1
    assert f"this is {system} on {architecture}; set it up on" in done.stderr
    assert not machine.calls("python3.11")


def test_a_driver_that_is_too_old_is_told_before_anything_is_downloaded(machine: Machine) -> None:
    machine.gpu(OLD)
    done = machine.setup()
    assert done.returncode == 1
    assert re.search(rf"needs NVIDIA's driver 580 or later, nvidia-smi tells {OLD};.*STACK=cpu", done.stderr)
    assert not (machine.root / ".venv").exists()
    assert machine.setup(STACK="cpu").returncode == 0


def test_a_gpu_without_a_cuda_toolkit_gets_all_that_needs_no_compiler(machine: Machine) -> None:
    machine.gpu(NEW)
    done = machine.setup()
    assert (done.returncode, done.stderr) == (0, "")
    calls = machine.calls("uv-of-venv")
    deepspeed = next(call for call in calls if "built-last.txt" in call)
    assert deepspeed.endswith("detection-ignored silent")  # its setup imports MLflow
    assert (machine.root / ".venv" / "built-last.txt").read_text() == "deepspeed==0.19.8\n"
    assert sum("requirements/mamba.txt" in call for call in calls) == 1
    assert not any("fused" in call for call in calls)


@pytest.mark.parametrize("name", ["python3.12", "python3.13", "python3"])
def test_any_python_of_the_locks_makes_the_environment(name: str, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path)
    machine.program(name, PYTHON)
    done = machine.setup()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{name} -m venv .venv " in machine.calls(name)


def test_where_no_python_of_the_locks_is_there_uv_fetches_one(tmp_path: Path) -> None:
    machine = Machine(root=tmp_path)
    machine.program("python3", OTHER_PYTHON)
    machine.program("uv-fetched", UV_FETCHED)
    machine.program("made-python", PYTHON)
    done = machine.setup()
    assert (done.returncode, done.stderr) == (0, "")
    (call,) = machine.calls("uv-fetched")
    assert "--managed-python --python 3.11 .venv" in call
    assert "installing the cpu stack" in done.stdout
