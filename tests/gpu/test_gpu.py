"""The parts of the GPU check: at full size on a GPU, small without one."""

from pathlib import Path

import pytest
from gpu.kernels import largest
from gpu.machine import on_gpu
from gpu.measure import HEAD, LIMIT_S, PAGE, PARTS, Report, run_apart

from requirements.carry import PARTS as CARRIED


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_holds(part: str) -> None:
    outcome = run_apart(part, small=False, limit_s=LIMIT_S)
    assert outcome.holds, outcome.section


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_holds_in_its_small_form(part: str) -> None:
    outcome = run_apart(part, small=True, limit_s=LIMIT_S)
    assert outcome.holds, outcome.section


def test_a_part_that_runs_out_of_time_does_not_hold() -> None:
    outcome = run_apart("kernels", small=True, limit_s=0.05)
    assert not outcome.holds
    assert "ran out" in outcome.section


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
