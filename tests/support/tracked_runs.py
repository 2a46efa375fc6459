"""A run in an MLflow store, and its records there."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from temper.orchestrator.pipeline.tracking import make_mlflow_sender
from temper.orchestrator.tracking.mlflow.stored_run import StoredRun
from temper.orchestrator.tracking.tracker import Tracker


def tracker(
    folder: Path,
    uri: str,
    *,
    name: str = "demo",
    experiment: str = "",
    traces: int | None = None,
    system_s: float = 0.0,
    notify: Callable[[str], None] = print,
) -> Tracker:
    """The tracker of the run in a folder, by default in an experiment of the folder's name."""
    run = StoredRun(
        name=name,
        uri=uri,
        experiment=experiment or folder.name,
        metrics=folder / "metrics.jsonl",
        state_dir=folder / "tracking",
        artifacts=folder / "mlartifacts",
        traces=traces,
        system_s=system_s,
    )
    return Tracker(make_mlflow_sender(run, notify=notify))


def runs(folder: Path, uri: str, view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
    """The runs of the experiment by their names, which must be unique."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(folder.name)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], run_view_type=view)
    assert len({run.info.run_name for run in found}) == len(found)
    return {run.info.run_name: run for run in found}


def history(uri: str, run: Run, name: str) -> dict[int, float]:
    """The value of each step. Steps must be unique."""
    found = MlflowClient(uri).get_metric_history(run.info.run_id, name)
    assert len({metric.step for metric in found}) == len(found)
    return {metric.step: metric.value for metric in found}


def sent_rows(state_dir: Path) -> int:
    """The number of rows that have certainly arrived."""
    return sum(json.loads(path.read_text())["sent"] for path in state_dir.glob("*.sent"))


def wait_for(what: Callable[[], object]) -> None:
    deadline = monotonic() + 120
    while not what():
        assert monotonic() < deadline
        sleep(0.05)


def episode_row(env: str, *, reward: float | None, calls: int = 0) -> dict[str, Any]:
    """A recorded answer of one turn, or of two with tool calls between them."""
    turn: dict[str, Any] = {
        "text": "so\n</think>\n42",
        "answer": "42",
        "observation": [],
        "context_ids": [1, 2],
        "sampled_ids": [3],
        "thinking_tokens": 1,
        "closed": "itself",
        "faults": [],
        "times": {"queue_s": 0.25, "generate_s": 1.0, "step_s": 0.5},
    }
    said = "".join(f'<tool_call>{{"name":"get","arguments":{{"key":"{n}"}}}}</tool_call>' for n in range(calls))
    told = [{"role": "tool", "name": "get", "content": f"value {n}"} for n in range(calls)]
    turns = [turn | {"text": said, "answer": said, "observation": told}, turn] if calls else [turn]
    return {
        "env": env,
        "key": f"{env}-key",
        "messages": [{"role": "user", "content": "6*7=?"}],
        "turns": turns,
        "reward": reward,
        "outcome": "right",
        "parts": {"correct": reward or 0.0},
        "detail": "as it should be",
        "evidence": {},
        "stop": "env",
        "thinking": {"mode": "unlimited", "budget": None},
        "ticket": 1,
        "admitted": 0,
        "failure": {"kind": "timeout", "message": "too late"} if reward is None else None,
        "seconds": 2.0 * len(turns),
    }
