"""What the viewer knows of a run beside its answers: its files, its tokenizer, and how its verdicts are repeated."""

from typing import Any

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, recorded_files
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes, tokenizer_of


def tokenizer_of_run(run: RunDir) -> TokenBytes | None:
    """Return the ids of the run's newest model; None where it lies no longer there."""
    model = run.state().model
    return None if model is None else tokenizer_of(run.root / model)


def facts_of(run: RunDir, files: list[RecordedFile] | None = None) -> dict[str, Any]:
    """Return what the page says of a run, as plain JSON data, with these of its files, or all."""
    listed = recorded_files(run) if files is None else files
    return {"run": run.root.resolve().name, "folder": str(run.root), "files": [file.about() for file in listed]}
