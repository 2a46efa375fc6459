"""A run's newest model on the Hugging Face hub, with a model card made from the run's report data."""

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HTTPError

from temper.envs.data.config import is_hub_name
from temper.orchestrator.config.model_source import FILES
from temper.orchestrator.evaluation.record import RunRecord, read_run
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.report.overview import (
    NO_TRAINING,
    AccuracyChange,
    accuracy_changes,
    describe_run,
)
from temper.rollout.weights.own_files import own_files

CARD, PICTURE = "README.md", "result.svg"
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")
"""Files of an earlier push that a push replaces."""
SETTINGS = (
    *("steps", "batch_size", "groups_per_step", "group_size", "updates_per_step", "max_lag", "beta"),
    *("optim.kind", "optim.learning_rate", "loss.advantage", "loss.surrogate", "loss.kl_coefficient"),
)
"""Settings of a stage that the card shows."""


def collect_files(run: RunDir, name: str) -> dict[str, Path]:
    """Write the card into the run's folder. Return the files to upload by their names in the repository.

    Raise `FileNotFoundError` if the run has no model yet.
    """
    newest = run.newest_model()
    card = run.root / CARD
    card.write_text(model_card(read_run(run.root), run, name), encoding="utf-8")
    model = {path.name: path for pattern in FILES for path in own_files(newest, pattern)}
    return model | {path.name: path for path in (card, run.root / PICTURE) if path.is_file()}


def upload(files: dict[str, Path], name: str, *, public: bool, run: Path, endpoint: str | None = None) -> str:
    """Upload files to a repository and return its address. The repository is created if needed, private unless `public`.

    Raise `ValueError` if there is no token, `ConnectionError` if the hub refuses or cannot be reached.
    """
    again = f"temper push {shlex.quote(str(run))} {name}{' --public' if public else ''}"
    if get_token() is None:
        raise ValueError(f"no token for the hub: run `hf auth login`, or set HF_TOKEN, and then `{again}`")
    hub = HfApi(endpoint=endpoint)
    try:
        address = hub.create_repo(name, private=not public, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            for at, path in files.items():
                (Path(folder) / at).symlink_to(path.resolve())
            hub.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=f"Upload {run.resolve().name}",
                delete_patterns=list(WEIGHTS),  # else an earlier push's weights in other files might be loaded
            )
    except (HTTPError, OSError) as error:
        raise ConnectionError(
            f"{name} could not be uploaded ({error}); check the network and retry `{again}`"
        ) from error
    return str(address)


def model_card(record: RunRecord, run: RunDir, name: str) -> str:
    """Return the model card: YAML front matter, facts, results, settings and the command."""
    facts, changes = describe_run(record, run.root), accuracy_changes(record)
    parts = [
        f"---\n{yaml.safe_dump(_metadata(record), sort_keys=False)}---",
        f"# {name.rpartition('/')[2]}",
        f"Model: {facts.get('model', 'unknown')}. Post-trained with Temper ({facts.get('stages', 'no stages')}).",
        _table(
            ("fact", "value"), [(label, text) for label, text in facts.items() if label not in ("command", "answers")]
        ),
    ]
    if changes:
        head = ("environment", "before", "after", "95 % interval", "tasks", "k")
        parts += ["## Results", _table(head, [_result(change, record.evaluations[-1].k) for change in changes])]
        parts.append("Held-out accuracy (avg@k) of the first and the last evaluation of the run.")
        if (run.root / PICTURE).is_file():
            parts.append(f"![accuracy and reward]({PICTURE})")
    parts += ["## Settings", _table(("setting", "value"), _settings(record))]
    parts += [
        "## Reproduce",
        f"```\ntemper run runs/{record.name}/config.yaml\n```",
        "## Use",
        f"```\ntemper serve {name}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(record: RunRecord) -> dict[str, Any]:
    model = record.config.get("model", {}).get("path")
    data = [(env.get("data") or {}) for env in record.config.get("envs", {}).values()]
    paths = dict.fromkeys(one["path"] for one in data if isinstance(one, dict) and one.get("path"))
    found = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": model if model and is_hub_name(model) else None,
        "datasets": [path for path in paths if is_hub_name(path)],
        "tags": ["temper", *dict.fromkeys(_trained(record).values())],
    }
    return {key: value for key, value in found.items() if value}


def _trained(record: RunRecord) -> dict[str, str]:
    """Return the stages of the training instances."""
    kinds = {name: record.stages.get(name, name) for name in record.stage_seconds}
    return {name: kind for name, kind in kinds.items() if kind not in NO_TRAINING}


def _settings(record: RunRecord) -> list[tuple[str, str]]:
    """Return the main settings of each trained stage."""
    found = []
    for name, kind in _trained(record).items():
        for key in SETTINGS:
            value = record.config.get(name) or record.config.get(kind) or {}
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found.append((f"`{name}.{key}`", str(value)))
    return found


def _result(change: AccuracyChange, k: int) -> tuple[str, ...]:
    low, high = change.after.interval
    before = "-" if change.before is None else f"{change.before.avg_at_k:.3f}"
    interval = f"{low:.3f} to {high:.3f}"
    return change.env, before, f"{change.after.avg_at_k:.3f}", interval, str(change.after.tasks), str(k)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
