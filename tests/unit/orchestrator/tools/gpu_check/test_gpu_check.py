"""The GPU check in its small form, on a CPU: every part stands alone, and the page says what it is of."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.orchestrator.tools.gpu_check.__main__ import check, main
from temper.orchestrator.tools.gpu_check.kernels import largest
from temper.orchestrator.tools.gpu_check.page import HEAD, page, said, section
from temper.orchestrator.tools.gpu_check.part import PARTS, Figure, Outcome, Part, Report
from temper.orchestrator.tools.gpu_check.running import Clock, ended, run_apart, run_here

KERNELS, *_ = PARTS
AT_ONCE = 1e-4
"""Of the deadlines, after which a part is ended while it starts."""


def test_the_parts_have_fifteen_minutes_together_and_a_file_each() -> None:
    assert sum(part.seconds for part in PARTS) <= 15 * 60
    folder = Path("orchestrator/tools/gpu_check")
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


def test_a_part_that_ran_out_of_time_has_found_nothing_wrong() -> None:
    outcome = run_apart(KERNELS, small=True, patience=AT_ONCE)
    assert (bool(outcome.late), outcome.fault, outcome.holds) == (True, "", False)
    assert said(outcome) not in (said(Outcome(name="x", fault="x")), said(Outcome(name="x")))
    assert outcome.late.splitlines()[0] in section(KERNELS, outcome)


@pytest.mark.parametrize(
    ("compiling", "seconds", "compile_s", "work_s", "is_late"),
    [(True, 0.0, 60.0, 0.5, False), (True, 60.0, 0.0, 60.0, True), (False, 0.0, 60.0, 60.0, True)],
)
def test_compiling_has_a_clock_of_its_own(
    compiling: bool, seconds: float, compile_s: float, work_s: float, is_late: bool, tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    report = Report("kernels", file)
    if not compiling:
        report.begin()
    clock = Clock(file, seconds=seconds, compile_s=compile_s)
    late, why = ended(["sleep", str(work_s)], tmp_path / "log", clock)
    assert (bool(late), why) == (is_late, "")


def test_the_clock_of_a_part_stops_while_it_compiles(tmp_path: Path) -> None:
    report = Report("kernels", tmp_path / "found.json")
    states = [report.outcome.compiling]
    report.begin()
    states.append(report.outcome.compiling)
    with report.compiling():
        states.append(Outcome.read(tmp_path / "found.json").compiling)
    states.append(Outcome.read(tmp_path / "found.json").compiling)
    assert states == [True, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "run"),
    [
        (["--without-vllm"], ["kernels", "shared_prompts", "learning"]),
        (["--without-vllm", "--only", "learning"], ["learning"]),
        (["--only", "sharing", "kernels", "--patience", "5"], ["kernels", "sharing"]),
    ],
)
def test_parts_are_chosen_by_name_and_by_what_they_need(
    arguments: list[str], run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, float] = {}

    def run_nothing(part: Part, *, small: bool, patience: float) -> Outcome:
        found[part.name] = patience
        return Outcome(name=part.name)

    monkeypatch.setattr("temper.orchestrator.tools.gpu_check.__main__.run_apart", run_nothing)
    monkeypatch.setattr("temper.orchestrator.tools.gpu_check.__main__.PAGE", None)
    assert main([*arguments, "--small"]) == 0
    assert list(found) == run
    assert set(found.values()) == {5.0 if "--patience" in arguments else 1.0}


@pytest.mark.parametrize("arguments", [["--without-vllm", "--only", "pushes"], ["--patience", "0"]])
def test_arguments_that_contradict_each_other_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)


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
        yield KERNELS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted(), file=tmp_path / "gpu.md", small=True, patience=AT_ONCE)
    assert "ran out of time" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_a_part_without_a_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not check([KERNELS], file=None, small=True, patience=AT_ONCE)
    assert capsys.readouterr().out.startswith(f"## {KERNELS.title}\n")


def test_the_page_in_docs_has_every_part() -> None:
    text = Path("docs/gpu.md").read_text(encoding="utf-8")
    assert text.startswith(HEAD), "`make gpu-check` writes it"
    assert [part.title for part in PARTS if f"## {part.title}\n" not in text] == []
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.parametrize("needs", ["none", "deepspeed"])
def test_parts_need_no_library_that_they_do_not_name(needs: str) -> None:
    names = [f"temper.orchestrator.tools.gpu_check.{part.name}" for part in PARTS if part.needs == needs]
    absent = {"vllm", "ray", "gymnasium", "omegaconf", "mamba_ssm"}
    names.append("temper.orchestrator.tools.gpu_check.__main__")
    absent |= {"deepspeed", "mlflow"} if needs == "none" else set()  # DeepSpeed imports MLflow
    program = f"import sys, {', '.join(names)}; print({absent} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_runs_in_a_small_form_on_a_cpu(part: Part, tmp_path: Path) -> None:
    file = tmp_path / "gpu.md"
    command = [
        sys.executable,
        "-m",
        "temper.orchestrator.tools.gpu_check",
        "--small",
        "--only",
        part.name,
        "--page",
        str(file),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=4 * part.seconds + 960, check=False)
    assert ran.returncode == 0, file.read_text(encoding="utf-8") if file.is_file() else ran.stderr
