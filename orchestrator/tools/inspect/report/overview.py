"""The head of a report and of a model card: model, data, hardware, code, command, and accuracies before and after."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.orchestrator.evaluation.record import EnvResult, RunRecord

NO_TRAINING = ("init", "eval", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyChange:
    """avg@k of an environment in its first and in the last evaluation. `before` is None if there is only one."""

    env: str
    before: EnvResult | None
    after: EnvResult
    labels: str

    def __str__(self) -> str:
        results = (self.after,) if self.before is None else (self.before, self.after)
        return " -> ".join("-" if math.isnan(one.avg_at_k) else f"{one.avg_at_k:.2f}" for one in results)


def describe_run(record: RunRecord, folder: Path) -> dict[str, str]:
    """Return the facts of a run by label, without unknown ones."""
    facts = {
        "model": describe_model(record.config),
        "data": ", ".join(_describe_env(name, env) for name, env in record.config.get("envs", {}).items()),
        "hardware": record.config.get("resolved", {}).get("hardware", ""),
        "stages": ", ".join(name for name in record.stage_seconds if name.partition("-")[0] not in NO_TRAINING),
        "seed": "" if record.seed is None else str(record.seed),
        "commit": ", ".join(record.commits),
        "command": f"temper run {shlex.quote(str(folder / 'config.yaml'))}",
        "answers": f"temper view {shlex.quote(str(folder))}",
    }
    return {name: text for name, text in facts.items() if text}


def describe_model(config: dict[str, Any]) -> str:
    """Return the initial model of a run: its path and revision, or the shape of a fresh one."""
    model = config.get("model", {})
    if model.get("path"):
        return f"{model['path']}{' @ ' + model['revision'] if model.get('revision') else ''}"
    fresh = model.get("fresh", {})
    return f"fresh {fresh['pattern']}, hidden size {fresh['hidden_size']}" if fresh else ""


def _describe_env(name: str, env: dict[str, Any]) -> str:
    data = env.get("data") or {}
    source = env.get("preset") or (data.get("path") if isinstance(data, dict) else data)
    return name if source in (None, name) else f"{name} ({source})"


def accuracy_changes(record: RunRecord) -> list[AccuracyChange]:
    """Return the change of each environment of the last evaluation since its first evaluation."""
    changes = []
    for env, after in record.evaluations[-1].envs.items() if record.evaluations else ():
        first = next(one for one in record.evaluations if env in one.envs)
        last = record.evaluations[-1]
        same = first is last
        labels = f"after {last.label}" if same else f"{first.label} -> {last.label}"
        changes.append(AccuracyChange(env=env, before=None if same else first.envs[env], after=after, labels=labels))
    return changes
