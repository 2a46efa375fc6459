"""Runs that differ in the stage `rl` alone: one base run for each seed, and its forks. Finished runs are not repeated."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from temper.orchestrator.run.folder import RunDir

TEMPER = (sys.executable, "-m", "temper.orchestrator")


def base_run(config: str, name: str, stages: Sequence[str], overrides: Sequence[str] = ()) -> Path:
    """Return the folder of a run of these stages, after running or resuming it."""
    folder = Path("runs") / name
    last = "eval-sft" if stages[-1] == "eval" else stages[-1]
    if last not in finished(folder):
        listed = f"stages=[{','.join(stages)}]"
        subprocess.run([*TEMPER, "run", config, f"name={name}", listed, *overrides], check=True)
    return folder


def fork_run(base: Path, name: str, overrides: Sequence[str] = ()) -> Path:
    """Return the folder of a fork of a base run after `sft`, which trains by `rl` and evaluates."""
    folder = base.parent / name
    if not folder.exists():
        stages = "stages=[init,sft,rl,eval]"
        subprocess.run([*TEMPER, "fork", str(base), "--from", "sft", f"name={name}", stages, *overrides], check=True)
    elif "eval-rl" not in finished(folder):
        subprocess.run([*TEMPER, "run", str(folder / "config.yaml")], check=True)
    return folder


def finished(folder: Path) -> set[str]:
    """Return the finished instances of a run, such as `eval-rl`."""
    return set(RunDir(folder).state().done)
