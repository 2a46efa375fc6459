"""What a run says of itself in a few lines of Markdown: results before and after, its settings in short, where more is."""

import math
from typing import Any

import yaml

from temper.orchestrator.evaluation.record import Evaluation, read_evaluations
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.tracking.notes import FILE, PAGE

SHOWN = (
    ("model.path", "model"),
    ("seed", "seed"),
    ("chosen.hardware", "hardware"),
    ("profile", "profile"),
    ("placement", "placement"),
    ("rollout.workers", "rollout workers"),
    ("learner.ranks", "ranks of the learner"),
    ("rl.groups_per_step", "groups of a step"),
    ("rl.group_size", "answers to a task"),
    ("rl.max_lag", "lag"),
    ("rl.optim.learning_rate", "learning rate of rl"),
    ("sft.optim.learning_rate", "learning rate of sft"),
)
"""The settings that are told, and what they are called; one that a run does not have is left out."""


def run_note(folder: RunDir) -> str:
    """Return the note of a run from what its folder holds now."""
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8")) if folder.config.exists() else {}
    state = folder.state()
    evaluations = sorted(read_evaluations(folder.evals), key=lambda one: one.order)
    parts = [_results(evaluations), _stages(state), _settings(config), _more(folder)]
    return "\n\n".join(part for part in parts if part)


def _results(evaluations: list[Evaluation]) -> str:
    """Return the accuracy of each environment after each evaluation as a table, and what changed from first to last."""
    if not evaluations:
        return "No evaluation yet."
    envs = sorted({env for one in evaluations for env in one.envs})
    heads = ["environment", *(f"after {one.label}" for one in evaluations)]
    if several := len(evaluations) > 1:
        heads.append("change")
    lines = [_line(heads), _line(["---"] + ["---:"] * (len(heads) - 1))]
    for env in envs:
        values = [one.envs[env].avg_at_k if env in one.envs else float("nan") for one in evaluations]
        change = [_number(values[-1] - values[0], sign="+")] if several else []
        lines.append(_line([env, *map(_number, values), *change]))
    last = evaluations[-1]
    asked = max((result.tasks_asked for result in last.envs.values()), default=0)
    return "\n".join([f"Accuracy (avg@{last.k} over {asked} held-out tasks an environment):", "", *lines])


def _stages(state: RunState) -> str:
    if not state.done:
        return ""
    told = [
        f"{name}{f' ({steps} steps)' if steps else ''} {state.seconds.get(name, 0.0):.0f} s"
        for name, steps in state.done.items()
    ]
    return f"Done: {', '.join(told)}."


def _settings(config: dict[str, Any]) -> str:
    envs = ", ".join(config.get("envs") or {})
    told = [f"environments {envs}"] if envs else []
    for key, name in SHOWN:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            told.append(f"{name} {value}")
    return f"Settings: {'; '.join(told)}." if told else ""


def _more(folder: RunDir) -> str:
    shown = [path.name for path in folder.artifacts if path.parent == folder.root and path.suffix != ".json"]
    links = [f"[{name}]({PAGE}/artifacts/{name})" for name in shown]
    pictures = [f"![{name}]({FILE}{name})" for name in shown if name.endswith(".svg")]
    linked = " - ".join([*links, f"[traces]({PAGE}/traces)"])
    return "\n\n".join([linked, f"Folder: `{folder.root}`", *pictures])


def _number(value: float, sign: str = "") -> str:
    """Write a number; a dash where there is none."""
    return f"{value:{sign}.2f}" if math.isfinite(value) else "-"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
