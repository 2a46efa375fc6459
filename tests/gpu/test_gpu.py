"""The parts of the GPU check: at full size on a GPU, small without one."""

import time
from pathlib import Path

import pytest
from gpu.kernels import largest
from gpu.machine import on_gpu
from gpu.measure import FINDINGS, HEAD, LOG, PAGE, PART_S, PARTS, WITHOUT_ENGINE, Report, check, run_apart

from requirements.carry import PARTS as CARRIED


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.timeout(2 * PART_S)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_holds(part: str, tmp_path: Path) -> None:
    outcome = run_apart(part, folder=tmp_path, small=False, limit_s=PART_S)
    assert outcome.holds, outcome.section


@pytest.mark.slow
@pytest.mark.timeout(2 * PART_S)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_holds_in_its_small_form(part: str, tmp_path: Path) -> None:
    outcome = run_apart(part, folder=tmp_path, small=True, limit_s=PART_S)
    assert outcome.holds, outcome.section


def test_parts_share_the_time_and_leave_their_files(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    began = time.monotonic()
    assert not check(["learning", "kernels"], folder=tmp_path, page=page, small=True, within_s=1.0)
    assert time.monotonic() - began < 10
    assert page.read_text(encoding="utf-8").count("ran out of its time") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"gpu.md", FINDINGS, LOG}
    assert (tmp_path / FINDINGS).read_text().count("## ") == 2


@pytest.mark.parametrize(
    ("value", "bounds", "holds"),
    [(1.0, {"at_most": 1.0}, True), (1.1, {"at_most": 1.0}, False), (0.9, {"at_least": 1.0}, False)],
)
def test_a_figure_holds_within_its_bounds(value: float, bounds: dict[str, float], holds: bool, tmp_path: Path) -> None:
    report = Report(tmp_path / "found")
    report.figure("a", value, **bounds)  # type: ignore[arg-type]
    assert report.holds == holds


def test_nan_is_the_largest_error_and_holds_nothing(tmp_path: Path) -> None:
    report = Report(tmp_path / "found")
    name, value = largest({"a": 0.001, "b": float("nan"), "c": 0.002})
    report.figure(name, value, at_most=1.0)
    assert (name, report.holds) == ("b", False)


def test_every_part_is_on_the_page_and_carried() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD), "`make gpu-check` writes it"
    assert [title for title in PARTS.values() if f"## {title}\n" not in text] == []
    assert sorted(name for names in CARRIED.values() for name in names) == sorted(PARTS)
    assert CARRIED["deepspeed"] == WITHOUT_ENGINE
