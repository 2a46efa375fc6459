"""The GPU check: facts that only a GPU can show, verified and measured part by part. Writes `docs/gpu.md`.

`PYTHONPATH=tests python -m gpu.measure`. Each part is a file of this folder with a function `run(report, small=...)`, or
shares one (`SHARED`). It runs in a separate process with a deadline: a fault in one does not stop the others.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu.machine import machine_words, on_gpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
PARTS = {
    "kernels": "Kernels of Mamba-2 against the definition",
    "shared_prompts": "Shared prompts, with layers computed again and without",
    "first_runner": "vLLM's first model runner",
    "second_runner": "vLLM's second model runner",
    "reload": "Pushes into a running engine: experts, and adapters",
    "pushes": "Each way of pushing weights",
    "learning": "The learner: a hybrid of 1 B parameters at ZeRO stage 3",
    "sharing": "One GPU shared by engine and learner",
    "broadcast": "Pushes from GPU to GPU",
    "curve": "A curve: the demo on one GPU",
}
"""The title of each part, in order."""
SHARED = {
    "first_runner": ("runners", {"runner": "v1"}),
    "second_runner": ("runners", {"runner": "v2"}),
    **{part: ("runs", {"part": part}) for part in ("sharing", "broadcast", "curve")},
}
"""The parts that have no file of their name: their file and their arguments."""
LIMIT_S = 1200.0
"""Deadline of a part, mostly for kernels: Mamba-2 alone compiles 110, which takes minutes with a cold cache."""
ENDS = {0: "all holds", 3: "a figure does not hold", 4: "nothing measured"}
"""The end of a part by its exit status."""
TAIL = 25
"""Lines of a failed part's output on the page."""
HEAD = """# GPU check

Look up the facts that only a GPU can show. Temper is developed on CPUs, so these are verified and measured part by part.

```
make gpu-check                             # needs a GPU: half an hour and compiling
```

It writes this page: a section for each part, with its machine, its figures and their limits. Each part runs in a separate
process with a deadline, and a fault in one does not stop the others. If a part ran out of time, its figures are unknown. Run it
again, since compiled kernels are kept, or raise all deadlines (`ARGS="--patience 5"`). `broadcast` needs two GPUs. Without a
GPU, or with `--small`, the parts run in a small form, and `second_runner`, which needs Triton, does not run.
`--only kernels --page docs/gpu.md` replaces one section. Without vLLM, `--only kernels shared_prompts` needs torch 2.11 and
transformers, `learning` also DeepSpeed.

Not yet run on a GPU: attention by borders behind shared prompts against an explicit mask, its speed against one, the measured
costs of passes, and packed rows in `learning`. Run `make gpu-check ARGS="--only shared_prompts learning --page docs/gpu.md"`.
"""


class Report:
    """Writes each finding of a part as a line of its section, so that nothing is lost if the part ends early."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.holds = True
        self.figures = 0

    def note(self, text: str) -> None:
        """Write a line of text."""
        with self._file.open("a", encoding="utf-8") as out:
            out.write(f"- {text}\n")

    def figure(
        self, name: str, value: float, unit: str = "", *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Write a number. It holds if it is within its bounds, which NaN never is."""
        holds = value == value and (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
        bounds = [f"at most {at_most:g}"] if at_most is not None else []
        bounds += [f"at least {at_least:g}"] if at_least is not None else []
        verdict = f" ({', '.join(bounds)}: {'holds' if holds else '**does not hold**'})" if bounds or not holds else ""
        self.note(f"{name}: {f'{value:,.4g} {unit}'.rstrip()}{verdict}")
        self.holds = self.holds and holds
        self.figures += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a part: its section of the page, and whether it ended with every figure within its bounds."""

    section: str
    holds: bool


def run_part(name: str, file: Path, *, small: bool) -> int:
    """Run a part in this process. Return the exit status, a key of `ENDS`."""
    report = Report(file)
    if small:
        torch.set_num_threads(1)  # threads that fight for a core cost many times their work
    file_name, arguments = SHARED.get(name, (name, {}))
    importlib.import_module(f"gpu.{file_name}").run(report, small=small, **arguments)
    if not report.figures:
        return 4
    return 0 if report.holds else 3


def run_apart(name: str, *, small: bool, limit_s: float) -> Outcome:
    """Run a part in a separate process, which is killed with its children at the deadline."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        found, log = Path(folder) / "found", Path(folder) / "log"
        found.touch()
        command = [sys.executable, "-m", "gpu.measure", "--part", name, "--found", str(found)]
        tuning = {"TRITON_PRINT_AUTOTUNING": "1", "TRITON_CACHE_AUTOTUNING": "1"}  # the next run tunes nothing again
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | tuning
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, *(["--small"] if small else [])],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )
            try:
                status = process.wait(limit_s)
                word = ENDS.get(status, f"failed with status {status}")
            except subprocess.TimeoutExpired:
                word, status = f"ran out of its time of {limit_s:g} s", 1
            finally:
                _end(process)
        where = f"{machine_words()}{', small form' if small else ''}"
        lines = [f"## {PARTS[name]}", "", f"`{name}`, {time.monotonic() - began:.0f} s: {word}. {where}.", ""]
        lines.append(found.read_text(encoding="utf-8"))
        if status not in ENDS:
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
            lines += ["```", *tail, "```", ""]
    return Outcome(section="\n".join(lines), holds=status in (0, 4))


def _end(leader: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a part."""
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    leader.wait()


def check(names: Iterable[str], *, page: Path | None, small: bool, patience: float) -> bool:
    """Run parts. Write the page after each, or print their sections without a page. Return whether all figures hold."""
    outcomes: dict[str, Outcome] = {}
    for name in names:
        print(f"{name}: {PARTS[name]}, at most {patience * LIMIT_S:.0f} s", file=sys.stderr)
        outcomes[name] = run_apart(name, small=small, limit_s=patience * LIMIT_S)
        print(outcomes[name].section, file=sys.stderr if page else sys.stdout)
        if page is not None:
            page.write_text(page_text(page, outcomes), encoding="utf-8")
    return all(outcome.holds for outcome in outcomes.values())


def page_text(page: Path, outcomes: Mapping[str, Outcome]) -> str:
    """Return the page with the sections of these outcomes. The sections of other parts are unchanged."""
    old = page.read_text(encoding="utf-8").split("\n## ")[1:] if page.exists() else []
    kept = {f"## {section}".splitlines()[0].removeprefix("## "): f"## {section.rstrip()}\n" for section in old}
    texts = [HEAD]
    for name, title in PARTS.items():
        texts.append(outcomes[name].section if name in outcomes else kept.get(title, f"## {title}\n\nNot run.\n"))
    return "\n".join(texts)


def main(arguments: list[str] | None = None) -> int:
    """Run the check. Return 0 if every part ends and every figure holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m gpu.measure", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the small form, as on a machine without a GPU")
    parser.add_argument("--patience", type=float, default=1.0, metavar="TIMES", help="times as long deadlines")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--page", type=Path, help="file of the page (default: docs/gpu.md; with --only none)")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    small = given.small or not on_gpu()
    if given.part is not None:
        return run_part(given.part, given.found, small=small)
    if not given.patience > 0:
        parser.error(f"--patience {given.patience:g}: give a number above 0, such as 5")
    names = [name for name in PARTS if name in (given.only or PARTS)]
    page = given.page or (None if given.only else PAGE)
    return 0 if check(names, page=page, small=small, patience=given.patience) else 1


if __name__ == "__main__":
    sys.exit(main())
