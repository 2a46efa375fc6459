"""The command `temper` as a user runs it, from any folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import tutorial_block as block

from temper.orchestrator.cluster.this_machine import FOLDER, worker_variables

ROOT = Path(__file__).resolve().parents[2]
TEMPER = (sys.executable, "-P", "-m", "temper.orchestrator")
HOSTILE = ("temper", "random", "yaml", "types", "ray")
ACTOR = """
import random, subprocess, sys
from temper.orchestrator.cluster.this_machine import search_last
search_last(sys.argv[1])
import ray
from temper.orchestrator.cluster.ray_cluster import start_ray, stop_ray

def seen():
    import backwards, os, temper.envs, random, yaml
    child = [sys.executable, "-c", "import random; print(random.__file__)"]
    of_child = subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip()
    waits = os.environ["OMP_WAIT_POLICY"]
    return [backwards.__file__, temper.envs.__file__, random.__file__, yaml.__file__, of_child, waits]

start_ray(slots=1, min_sandbox_level=0)
print("seen", *ray.get(ray.remote(num_cpus=0)(seen).remote()), sep="\\n")
stop_ray()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with an environment, and modules named as ours and as libraries', which must not be imported."""
    for number, name in enumerate(HOSTILE):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "__init__.py" if number % 2 else tmp_path / f"{name}.py"
        file.write_text(f"raise RuntimeError('{name} of the folder is imported')")
    (tmp_path / "backwards.py").write_text(block("python"))
    return tmp_path


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_an_environment_of_the_folder_is_found_and_nothing_else_of_it(folder: Path) -> None:
    checked = run(folder, *TEMPER, "env", "check", "--env", "backwards", "--limit", "8")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.endswith("passed\n")


def test_workers_of_ray_find_modules_as_the_driver_does_and_their_threads_sleep(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ACTOR, str(folder)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own, ours, standard, library, of_child, waits = done.stdout.split("seen\n")[1].split()
    assert own == str(folder / "backwards.py")
    assert Path(ours).resolve() == ROOT / "envs" / "__init__.py"
    assert not standard.startswith(str(folder))
    assert not library.startswith(str(folder))
    assert of_child == standard
    assert waits == "PASSIVE"


def test_the_error_that_ends_a_run_is_in_its_folder(tmp_path: Path) -> None:
    """Its terminal may be gone when somebody asks for the reason."""
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "checkpoints").touch()  # where a folder is to be made
    settings = ("stages=[init]", "name=one", f"runs_dir={tmp_path / 'runs'}")
    assert run(tmp_path, *TEMPER, "run", str(ROOT / "configs" / "demo.yaml"), *settings).returncode == 1
    shown = json.loads(run(tmp_path, *TEMPER, "status", "runs/one", "--json").stdout)
    assert "checkpoints" in shown["events"][0]["text"]


def test_workers_of_a_job_find_the_modules_of_whoever_submitted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))  # the job itself runs in a copy of the repository
    assert worker_variables()[FOLDER] == str(tmp_path)


@pytest.mark.parametrize("command", [("--help",), ("config", "--reference"), ("status", "runs/mine")])
def test_a_command_whose_output_nobody_reads_on_ends_quietly(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "manifest.json").write_text("{}")
    read, write = os.pipe()
    os.close(read)
    said = subprocess.run(
        [*TEMPER, *command],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    os.close(write)
    assert (said.returncode, said.stderr) == (141, "")
