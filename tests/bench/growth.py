"""How the costs of a run grow with engines, environments, length of answers and steps.

`python -m bench.growth [ROW ...]` trains the demo's fresh model from its first step on, once for each row, and prints a
JSON line: CPU microseconds per sampled token and resident MiB, by kind of process. CPU time depends little on other work, so
rows can be compared on a shared machine. A fresh model hardly ends an answer, so that answers have their full length.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from bench.forks import TEMPER
from bench.start import use_by_kind

from temper.orchestrator.run.metrics_log import read_metrics

SKIPPED = 2
"""Uncounted steps at the start: the pipeline fills."""
REWARD = "bench.growth.odd_length"
GENERATED = ("math", "code", "instruction_following")


def odd_length(answer: str, row: object) -> float:
    """Return 1 for an answer of odd length: a reward that differs in each group, so that the learner has work."""
    return float(len(answer) % 2)


def _environments(count: int) -> dict[str, Any]:
    kinds = [GENERATED[place % len(GENERATED)] for place in range(count)]
    return {f"{kind}_{place}": {"kind": kind, "reward": REWARD} for place, kind in enumerate(kinds)}


def _answers(tokens: int) -> list[str]:
    limits = [f"rollout.limits.turn_tokens={tokens}", f"rollout.limits.total_tokens={tokens + 416}"]
    return [*limits, "rollout.engine.max_model_len=3072", "model.fresh.max_positions=3072", "rl.steps=6"]


ROWS: dict[str, tuple[int, list[str]]] = {
    **{f"engines {count}": (3, [f"rollout.workers={count}", "rl.steps=8"]) for count in (1, 2, 4)},
    **{f"environments {count}": (count, ["rl.steps=8"]) for count in (1, 3, 6, 12)},
    **{f"answers {tokens}": (3, _answers(tokens)) for tokens in (96, 512, 2048)},
    "steps 300": (3, ["rl.steps=300", "rl.groups_per_step=6", "rl.group_size=4"]),
}
"""Environments and settings of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Use of a run at the end of a step, by kind of process."""

    step: int
    tokens: float
    """Tokens sampled up to here."""
    cpu_s: dict[str, float]
    mib: dict[str, float]


def measure(row: str) -> dict[str, Any]:
    """Make the run of a row and return its figures."""
    environments, overrides = ROWS[row]
    with tempfile.TemporaryDirectory(prefix="temper-growth-") as folder:
        config = Path(folder) / "config.yaml"
        demo = yaml.safe_load(Path("configs/demo.yaml").read_text())
        demo |= {"name": "growth", "stages": ["init", "rl"], "runs_dir": folder, "envs": _environments(environments)}
        demo["rl"] |= {"shares": {}, "max_replaced_groups": 0, "checkpoint_every": 1000}
        config.write_text(yaml.safe_dump(demo))
        samples = _sampled([*TEMPER, "run", str(config), *overrides], Path(folder) / "growth" / "metrics.jsonl")
    first, last = samples[SKIPPED - 1], samples[-1]
    tokens = last.tokens - first.tokens
    used = {kind: (seconds - first.cpu_s.get(kind, 0.0)) / tokens * 1e6 for kind, seconds in last.cpu_s.items()}
    return {
        "row": row,
        "tokens": tokens,
        "us_a_token": {kind: round(us, 1) for kind, us in used.items()} | {"all": round(sum(used.values()), 1)},
        "mib": {
            step.step: {kind: round(mib) for kind, mib in step.mib.items()}
            for step in (first, samples[len(samples) // 2], last)
        },
    }


def _sampled(command: Sequence[str], metrics: Path) -> list[Sample]:
    """Run a command and return a sample at the end of each step."""
    samples: list[Sample] = []
    with psutil.Popen(command, stdout=sys.stderr) as run:
        while run.poll() is None:
            time.sleep(0.2)
            rows = [one for one in read_metrics(metrics) if one.is_step_of("rl")] if metrics.exists() else []
            if len(rows) > len(samples):
                tokens = sum(one.values.get("engine/sampled_tokens", 0.0) for one in rows)
                cpu_s, mib = use_by_kind(run)
                sample = Sample(step=rows[-1].step, tokens=tokens, cpu_s=cpu_s, mib=mib)
                samples += [sample] * (len(rows) - len(samples))
    if run.returncode:
        raise SystemExit(f"{' '.join(command)}: status {run.returncode}")
    return samples


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all: {', '.join(ROWS)}")
    rows = parser.parse_args().rows or list(ROWS)
    if unknown := sorted(set(rows) - set(ROWS)):
        parser.error(f"no such row: {', '.join(unknown)}")
    for name in rows:
        print(json.dumps(measure(name)), flush=True)
