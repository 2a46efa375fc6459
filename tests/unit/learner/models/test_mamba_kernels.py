"""The shipped kernels of Mamba-2 on a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiny_models

SUPPORT = Path(tiny_models.__file__).parent
ROOT = SUPPORT.parents[1]
ARCHITECTURES = (80, 90, 100)
KERNELS = 14
"""Kernels of a scan and its gradient."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel of the lock, without a network."""
    folder = tmp_path_factory.mktemp("site")
    offline = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(folder)]
    subprocess.run([*offline, "--requirement", "requirements/mamba.txt"], cwd=ROOT, check=True, timeout=300)
    return folder


def run(script: str, argument: str, *, site: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / ".types"), str(ROOT / "tests"), str(site)])
    return subprocess.run(
        [sys.executable, str(SUPPORT / script), argument],
        env=os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def test_the_interpreted_kernels_equal_the_plain_scan(site: Path, tmp_path: Path) -> None:
    """Values and gradients, with groups, an initial state, several sequences in a row, bfloat16, and in a whole hybrid."""
    report = tmp_path / "report"
    ran = run("interpreted_kernels.py", str(report), site=site, cache=tmp_path)
    assert ran.returncode == 0, report.read_text() + ran.stderr[-4000:]
    assert "mamba2_chunk_scan: a kernel of mamba_ssm" in report.read_text()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_compile_for_gpus(architecture: int, site: Path, tmp_path: Path) -> None:
    ran = run("compiled_kernels.py", str(architecture), site=site, cache=tmp_path)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert len(ran.stdout.splitlines()) == KERNELS
