"""The GPU check in its small form, on a CPU: every part stands alone, and the page says what it is of."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.gpu_check.__main__ import check
from orchestrator.gpu_check.kernels import largest
from orchestrator.gpu_check.page import HEAD, page
from orchestrator.gpu_check.part import PARTS, Figure, Outcome, Part, Report
from orchestrator.gpu_check.running import run_apart, run_here

KERNELS, *_ = PARTS
SHORT = replace(KERNELS, seconds=0.1)


def test_the_parts_have_fifteen_minutes_together_and_a_file_each() -> None:
    assert sum(part.seconds for part in PARTS) <= 15 * 60
    folder = Path("orchestrator/gpu_check")
    assert [part.name for part in PARTS if not (folder / f"{part.name}.py").is_file()] == []


def test_a_figure_holds_within_its_bounds_alone() -> None:
    assert Figure(name="a", value=1.0).holds
    assert Figure(name="a", value=1.0, at_most=1.0).holds
    assert not Figure(name="a", value=1.1, at_most=1.0).holds
    assert not Figure(name="a", value=0.9, at_least=1.0).holds
    assert not Figure(name="a", value=float("nan"), at_most=1.0).holds


def test_an_error_that_is_no_number_is_the_largest() -> None:
    assert largest({"a": 0.001, "b": 0.002}) == ("b", 0.002)
    name, value = largest({"a": 0.001, "b": float("nan"), "c": 0.002})
    assert name == "b"
    assert not Figure(name=name, value=value, at_most=1.0).holds


def test_a_part_that_faults_tells_its_traceback_and_what_it_had_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert not run_here("no_such_part", file, small=True)
    outcome = Outcome.read(file)
    assert "ModuleNotFoundError" in outcome.fault
    report = Report("kernels", file)
    report.figure("one", 1, "ms", at_most=2)
    report.fault("ValueError: two")
    outcome = Outcome.read(file)
    assert [figure.name for figure in outcome.figures] == ["one"]
    assert not outcome.holds


def test_a_part_that_hangs_is_ended_at_its_deadline() -> None:
    outcome = run_apart(SHORT, small=True)
    assert outcome.fault.startswith("it ran past its 0.4 s")


def test_the_page_says_that_nothing_was_run_on_a_gpu_where_none_was() -> None:
    outcome = Outcome(name="kernels", fault="Traceback: x", figures=[Figure(name="e", value=3e-7, at_most=1e-8)])
    text = page(PARTS, [outcome], machine="2 CPU cores", gpu=False)
    assert "**Not run on a GPU yet.**" in text
    assert "| e | 3e-07 | at most 1e-08 | **does not hold** |" in text
    assert "```\nTraceback: x\n```" in text
    assert text.count("Not run.\n") == len(PARTS) - 1
    assert "Not run on a GPU yet" not in page(PARTS, [outcome], machine="H100", gpu=True)


def test_what_was_found_is_whole_at_any_moment(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    report = Report("kernels", file)

    def tell() -> None:
        for number in range(300):
            report.figure(str(number), number)

    writing = threading.Thread(target=tell)
    writing.start()
    while writing.is_alive():  # as it would lie there if the part were killed now
        assert Outcome.read(file).name == "kernels"
    assert len(Outcome.read(file).figures) == 300


def test_the_page_has_what_was_found_before_an_interrupt(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Part]:
        yield SHORT
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted(), file=tmp_path / "gpu.md", small=True)
    assert "it ran past its 0.4 s" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_a_part_without_a_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not check([SHORT], file=None, small=True)
    assert capsys.readouterr().out.startswith(f"## {SHORT.title}\n")


def test_the_page_in_docs_has_every_part() -> None:
    text = Path("docs/gpu.md").read_text(encoding="utf-8")
    assert text.startswith(HEAD), "`make gpu-check` writes it"
    assert [part.title for part in PARTS if f"## {part.title}\n" not in text] == []
    assert "Traceback" not in text


@pytest.mark.slow
def test_parts_without_vllm_need_torch_and_transformers_alone() -> None:
    names = [f"orchestrator.gpu_check.{part.name}" for part in PARTS if not part.vllm]
    absent = "{'vllm', 'ray', 'deepspeed', 'gymnasium', 'omegaconf', 'mlflow', 'mamba_ssm'}"
    program = f"import sys, {', '.join(names)}, orchestrator.gpu_check.__main__; print({absent} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_runs_in_a_small_form_on_a_cpu(part: Part, tmp_path: Path) -> None:
    file = tmp_path / "gpu.md"
    command = [sys.executable, "-m", "orchestrator.gpu_check", "--small", "--only", part.name, "--page", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=4 * part.seconds + 60, check=False)
    assert ran.returncode == 0, file.read_text(encoding="utf-8") if file.is_file() else ran.stderr
