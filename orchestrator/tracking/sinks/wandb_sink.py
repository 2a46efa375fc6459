"""A run in Weights & Biases. The home of wandb: offline it records in the run's folder, for `wandb sync`.

Each process records the rows that W&B lacks. W&B joins them by the run's id. It can't delete values: if the metrics file
lost sent rows, the run continues under another id.
"""

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

os.environ |= {"WANDB_ERROR_REPORTING": "false", "DO_NOT_TRACK": "true"}  # W&B reads these when it is imported
os.environ.pop("WANDB_SERVICE", None)  # it may belong to another program
import wandb

from temper.orchestrator.run.folder import RunDir, write_json
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.backend import FILE, PAGE, Backend, RunStatus
from temper.orchestrator.tracking.evaluation_table import build_table, read_accuracies
from temper.orchestrator.tracking.metric_names import EVALUATIONS, display_values
from temper.orchestrator.tracking.sinks.config import WandbConfig
from temper.orchestrator.tracking.unsent_rows import RunIdentity, UnsentRows, load_identity, save_identity

STEP = "step"
"""Group of the stages' steps, which are the axes of the charts."""
ORDER = f"{STEP}/evaluation"
"""Axis of evaluation accuracies, counted over the run."""
START_S, END_S = 30.0, 15.0
"""Timeouts of W&B at the start and at the end, in seconds."""
EXIT = {RunStatus.FINISHED: 0, RunStatus.FAILED: 1, RunStatus.KILLED: 255}
"""Exit codes for W&B by the final status of a run."""
LINK = re.compile(rf"(?: - )?!?\[[^\]]*\]\((?:{PAGE}|{FILE})[^)]*\)")
"""A link in a note to MLflow's pages, or an image on its server."""


class WandbSink(Backend):
    """One run in a project. `<id>.sent` counts the rows sent."""

    def __init__(self, settings: WandbConfig, *, name: str, folder: RunDir, notify: Callable[[str], None]) -> None:
        self._settings = settings
        self._name = name
        self._uploads = settings.uploads
        self._root = folder.root.absolute()
        self._metrics = folder.metrics.absolute()
        self._state_dir = folder.tracking.absolute() / "wandb"
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self.notify = notify
        self._run: Any = None
        self._known = RunIdentity()
        self._next = 0
        self._defined: set[str] = set()

    def connect(self) -> UnsentRows:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=EXIT[RunStatus.KILLED])
            self._start_record.unlink(missing_ok=True)
        self._known = self._load_identity()
        self._discard_unfinished()
        unsent = self._open_unsent()
        if unsent.has_lost_rows():
            unsent.close()
            self._renew_id()
            self._known = self._load_identity()
            unsent = self._open_unsent()
        self._next = unsent.known["sent"]
        if not self._uploads:
            names = [folder.name for folder in self._records("offline-")]
            write_json(self._start_record, {"records": names, "sent": unsent.known})
        self._run = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            name=self._name,
            group=self._name,
            id=self._known.run_id,
            resume="allow",
            settings=_settings(self._state_dir, uploads=self._uploads),
        )
        self._defined = set()
        kept = self._state_dir / "wandb" / f"*run-*-{self._run.id}"
        self.address = f"W&B offline, in {kept}; after the run, upload it with `wandb sync {kept}`"
        if self._uploads:
            self.address = f"at {self._run.url}, and in {kept}"
        return unsent

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write rows. W&B's step is the row's number. The axis of its charts is the step of the stage."""
        for number, row in enumerate(rows, self._next):
            values = display_values(row)
            axis = f"{STEP}/{row.stage.replace('.', '/')}"  # W&B reads a dot as a nested key
            self._define(axis, values)
            order, accuracy = find_accuracies(row, self._root)
            self._define(ORDER, accuracy)
            if row.event is not None:
                self._run.summary[f"event/{round(row.time * 1000)}/{number}"] = row.event_line  # unique by row
            elif values or accuracy:
                found = values | {axis: row.step} | accuracy | ({ORDER: order} if accuracy else {})
                self._run.log(found | {"_timestamp": row.time}, step=number)
        self._next += len(rows)  # at the end, because a failed batch is repeated, and W&B skips known steps

    def send_params(self, values: dict[str, str]) -> None:
        self._run.config.update(values, allow_val_change=True)

    def describe(self, note: str) -> None:
        self._run.notes = strip_links(note)

    def store(self, path: Path) -> None:
        """Copy a file into the record, at its path in the run's folder, and an evaluation's table too."""
        target = path.relative_to(self._root) if path.is_relative_to(self._root) else Path(path.name)
        copy = Path(self._run.dir) / target
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        self._keep(copy)
        if target.parent == Path("eval"):
            table = copy.with_suffix(".table.json")
            table.write_text(
                json.dumps(build_table(json.loads(path.read_text(encoding="utf-8")), None)), encoding="utf-8"
            )
            self._keep(table)

    def end(self, ended: RunStatus) -> None:
        """End the run. If W&B does not finish in time, the rest stays in the record."""
        try:
            self._run.finish(exit_code=EXIT[ended])
            self._start_record.unlink(missing_ok=True)
        except TimeoutError:
            folder = Path(self._run.dir).parent
            self.notify(f"tracking: W&B did not finish in {END_S:.0f} s; upload the rest with `wandb sync {folder}`")

    def abandon(self) -> None:
        """Kill W&B's process, which would delay the end of this one."""
        for child in psutil.Process().children():
            if child.name().startswith("wandb"):
                child.kill()

    def _load_identity(self) -> RunIdentity:
        """Return the stored identity of the run, with an id chosen here."""
        known = load_identity(self._state_dir)
        if known.run_id is None:
            known = replace(known, run_id=uuid.uuid4().hex[:16])
            save_identity(self._state_dir, known)
        return known

    def _open_unsent(self) -> UnsentRows:
        return UnsentRows(self._metrics, self._state_dir / f"{self._known.run_id}.sent")

    @property
    def _start_record(self) -> Path:
        """File with W&B's state before an unfinished record."""
        return self._state_dir / f"{self._known.run_id}.begun"

    def _records(self, kind: str = "*") -> list[Path]:
        """Return the folders of the run's records, in order."""
        return sorted(self._state_dir.glob(f"wandb/{kind}run-*-{self._known.run_id}"))

    def _discard_unfinished(self) -> None:
        """Delete the record of a killed process and mark its rows unsent. W&B writes in blocks, so it may lack rows."""
        if not self._start_record.exists():
            return
        begun = json.loads(self._start_record.read_text(encoding="utf-8"))
        left = [folder for folder in self._records("offline-") if folder.name not in begun["records"]]
        if left and not any(map(_is_uploaded, left)):
            write_json(self._state_dir / f"{self._known.run_id}.sent", begun["sent"])
            for folder in left:
                shutil.rmtree(folder)
        self._start_record.unlink()

    def _renew_id(self) -> None:
        """Give the run another id. Delete the records of this one that were not uploaded."""
        folders = self._records()
        local = [one for one in folders if one.name.startswith("offline-") and not _is_uploaded(one)]
        if len(local) < len(folders):
            self.notify(
                f"tracking: W&B has rows of the run {self._known.run_id} that metrics.jsonl lost; it continues as a new run. "
                f"Delete the old one"
            )
        for folder in local:
            shutil.rmtree(folder)
        save_identity(self._state_dir, RunIdentity(mark=self._known.mark))

    def _define(self, axis: str, values: dict[str, float]) -> None:
        """Set the chart axis of values in W&B, once each."""
        for name in values.keys() - self._defined:
            self._run.define_metric(name, step_metric=axis, step_sync=False)  # each row has its step
            self._defined.add(name)

    def _keep(self, file: Path) -> None:
        self._run.save(str(file), base_path=self._run.dir, policy="now")


def strip_links(note: str) -> str:
    """Return a note without links to MLflow's pages and images."""
    return LINK.sub("", note).strip()


def find_accuracies(row: MetricsRow, root: Path) -> tuple[int, dict[str, float]]:
    """Return the order of a row's evaluation, and the accuracies by their MLflow names.

    The evaluation's file, written before its row, has them. Empty for other rows, and if the file is gone.
    """
    file = root / "eval" / f"{row.stage.removeprefix(EVALUATIONS)}.json"
    if not row.stage.startswith(EVALUATIONS) or row.event is not None or not file.exists():
        return 0, {}
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["order"], read_accuracies(result)


def _is_uploaded(record: Path) -> bool:
    """Return whether `wandb sync` has uploaded a record."""
    return any(record.glob("*.wandb.synced"))


def _settings(folder: Path, *, uploads: bool) -> Any:
    """Return settings that limit W&B to the run's reports and to short timeouts."""
    return wandb.Settings(
        mode="online" if uploads else "offline",
        root_dir=str(folder),
        init_timeout=START_S,
        finish_timeout=END_S,
        finish_timeout_raises=True,
        console="off",
        silent=True,
        host="",
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
