"""The package's wheel in a separate virtual environment that shares the libraries of this one."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
ALONE = ("--no-deps", "--no-build-isolation", "--no-index")
RUNTIME_FILES = (
    "temper/configs/demo.yaml",
    "temper/configs/recipes/one_gpu.yaml",
    "temper/configs/recipes/smollm2/calls.jinja",
    "temper/requirements/cpu.txt",
    "temper/learner/models/chat_template.jinja",
    "temper/orchestrator/tools/inspect/report/report.css",
    "temper/orchestrator/tools/inspect/viewer/browser/viewer.html",
    "temper/orchestrator/tools/new_env/templates/rows/rows.jsonl",
)


def run(*command: "str | Path", cwd: Path) -> str:
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(command, cwd=cwd, env=without, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    run(*PIP, "wheel", *ALONE, "--wheel-dir", folder / "out", folder, cwd=folder)
    (made,) = (folder / "out").glob("temper-*.whl")
    return made


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a virtual environment with the wheel."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    run(*PIP, "--python", folder / "bin" / "python", "install", *ALONE, wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_has_all_code_and_runtime_files_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    code = {
        f"temper/{file.relative_to(ROOT)}" for name in ("envs", "orchestrator") for file in (ROOT / name).rglob("*.py")
    }
    assert code <= names
    assert names >= set(RUNTIME_FILES)
    folders = {name.split("/")[0] for name in names}
    assert {name for name in folders if not name.startswith("temper-")} == {"temper"}
    assert [name for name in names if "/tests/" in name or name.endswith("setup.py")] == []


def test_an_environment_is_written_and_its_run_is_planned(programs: Path, tmp_path: Path) -> None:
    assert "usage: temper" in run(programs / "temper", "--help", cwd=tmp_path)
    assert run(programs / "temper", "--version", cwd=tmp_path).split()[1][0].isdigit()
    run(programs / "temper", "env", "new", "mine", "--rows", cwd=tmp_path)
    run(programs / "temper", "run", "mine/run.yaml", "--dry-run", cwd=tmp_path)


def test_folders_named_as_ours_are_the_users(programs: Path, tmp_path: Path) -> None:
    for name in ("rewards", "envs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("")
    program = "import rewards.mine, envs.mine, temper.rewards; print(rewards.mine.__file__, temper.__file__)"
    own, package = run(programs / "python", "-c", program, cwd=tmp_path).split()
    assert own == str(tmp_path / "rewards" / "mine.py")
    assert Path(package).is_relative_to(programs.parent)
