"""A run in Weights & Biases. The home of wandb: offline it is a record in the run's folder, which `wandb sync` uploads.

W&B takes nothing back and gives no deletion to a record that is being written, so offline each process writes the record
anew, from the first row, in the place of the one before, unless that was uploaded: then, as online, it holds what is new, and
W&B puts both together by the id of the run. Where rows that were uploaded have been cut off the file, the run goes on under
another id.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import wandb

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.evaluation_table import table_of
from temper.orchestrator.tracking.remembered import Remembered, remember, remembered
from temper.orchestrator.tracking.sinks.sink import SinkRun, accuracies_of, shown_values, without_links
from temper.orchestrator.tracking.tracker import Ended
from temper.orchestrator.tracking.unsent_rows import OFFERED, UnsentRows

STEP = "step"
"""The group of the steps of each stage, which are the axes of its charts."""
ORDER = f"{STEP}/evaluation"
"""The axis of the accuracies of evaluations, which are counted over the run."""
START_S, END_S = 30.0, 15.0
"""How long W&B may take to answer at the start, and to take what is left at the end, in seconds."""
FINISHED = "finished"
"""A file in the folder of a process whose rows W&B has taken, every one."""
EXIT = {Ended.FINISHED: 0, Ended.FAILED: 1, Ended.KILLED: 255}
"""The exit codes from which W&B tells how a run ended."""


class WandbSink:
    """One run in a project. Beside its record, `<id>.sent` has what was sent, `<id>.before` what of it W&B has for certain."""

    def __init__(self, run: SinkRun, say: Callable[[str], None]) -> None:
        self._given = run
        self._say = say
        self._memory = Path(run.memory)
        self._run: Any = None
        self._next = 0
        self._defined: set[str] = set()

    @property
    def where(self) -> str:
        """Where the run lies, and how it gets to W&B."""
        kept = self._memory / "wandb" / f"*run-*-{self._run.id}"
        if self._given.uploads:
            return f"at {self._run.url}, and in {kept}"
        return f"W&B offline, in {kept}; `wandb sync {kept}` uploads it, once the run is done"

    def connect(self) -> UnsentRows:
        """Begin the run or go on with it."""
        run, self._run = self._run, None
        if run is not None:
            _finish(run, Ended.KILLED)
        unsent = self._prepared(self._known())
        if unsent.is_cut():
            known = Remembered(mark=self._known().mark)
            self._say(
                f"tracking: W&B has rows of the run {self._known().run_id} that metrics.jsonl has no more; it goes on "
                f"there as a new run, delete the old one"
            )
            remember(self._memory, known)
            unsent = self._prepared(self._known())
        unsure = [] if not self._given.uploads else self._unfinished()
        self._run = wandb.init(
            project=self._given.project,
            entity=self._given.entity,
            name=self._given.name,
            group=self._given.name,
            id=self._known().run_id,
            resume="allow",
            settings=_settings(self._memory, uploads=self._given.uploads),
        )
        self._defined = set()
        for folder in unsure:
            self._say(
                f"tracking: the driver that wrote {folder} was killed; `wandb sync {folder}` uploads what W&B lacks"
            )
        return unsent

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write rows. W&B's own step is the number of the row; the axis of its charts is the step of its stage."""
        for row in rows:
            values = shown_values(row)
            axis = f"{STEP}/{row.stage.replace('.', '/')}"  # W&B takes what stands behind a dot for a key within
            self._define(axis, values)
            order, accuracy = accuracies_of(row, self._given.root)
            self._define(ORDER, accuracy)
            if row.event is not None:
                self._run.summary[f"event/{round(row.time * 1000)}/{self._next}"] = row.event_line  # by its row, too
            elif values or accuracy:
                found = values | {axis: row.step} | accuracy | ({ORDER: order} if accuracy else {})
                self._run.log(found | {"_timestamp": row.time}, step=self._next)
            self._next += 1

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration."""
        self._run.config.update(values, allow_val_change=True)

    def describe(self, note: str) -> None:
        """Make the note the run's own."""
        self._run.notes = without_links(note)

    def store(self, path: Path) -> None:
        """Copy a file into the record, at the place where it lies in the run's folder; of an evaluation its table too."""
        place = self._given.place_of(path)
        copy = Path(self._run.dir) / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        self._keep(copy)
        if place.parent == Path("eval"):
            table = copy.with_suffix(".table.json")
            table.write_text(json.dumps(table_of(json.loads(path.read_text(encoding="utf-8")), None)), encoding="utf-8")
            self._keep(table)

    def end(self, ended: Ended) -> None:
        """End the run. What W&B has not taken by then lies in the record."""
        try:
            _finish(self._run, ended)
        except TimeoutError:
            self._say(
                f"tracking: W&B did not take all in {END_S:.0f} s; `wandb sync {_folder(self._run)}` uploads the rest"
            )

    def _unfinished(self) -> list[Path]:
        """Return the folders of processes before this one that were ended before W&B had taken all."""
        folders = self._memory.glob(f"wandb/run-*-{self._known().run_id}")
        return sorted(folder for folder in folders if not (folder / FINISHED).exists())

    def _known(self) -> Remembered:
        """Return what is remembered of the run, whose id is ours to choose."""
        known = remembered(self._memory)
        if known.run_id is None:
            known = replace(known, run_id=uuid.uuid4().hex[:16])
            remember(self._memory, known)
        return known

    def _prepared(self, known: Remembered) -> UnsentRows:
        """Return what W&B lacks of the file, after the record was removed that is written anew."""
        sent, before = (self._memory / f"{known.run_id}.{ending}" for ending in ("sent", "before"))
        old = [file.parent for file in self._memory.glob(f"wandb/offline-run-*-{known.run_id}/*.wandb")]
        old = [folder for folder in old if not list(folder.glob("*.wandb.synced"))]
        if old and before.exists():
            shutil.copyfile(before, sent)  # first: as long as the record is there this can be done again
        for folder in old:
            shutil.rmtree(folder)
        sent.touch()
        shutil.copyfile(sent, before)
        lines = sent.read_text(encoding="ascii").split()
        self._next = sum(not line.startswith(OFFERED) for line in lines)
        return UnsentRows(Path(self._given.metrics), sent)

    def _define(self, axis: str, values: dict[str, float]) -> None:
        """Tell W&B against which axis values are drawn, once for each."""
        for name in values.keys() - self._defined:
            self._run.define_metric(name, step_metric=axis, step_sync=False)  # each row brings its own
            self._defined.add(name)

    def _keep(self, file: Path) -> None:
        self._run.save(str(file), base_path=self._run.dir, policy="now")


def _finish(run: Any, ended: Ended) -> None:
    """End a run of W&B's. Raise `TimeoutError` where it did not take all in time."""
    run.finish(exit_code=EXIT[ended])
    (_folder(run) / FINISHED).touch()


def _folder(run: Any) -> Path:
    return Path(run.dir).parent


def _settings(folder: Path, *, uploads: bool) -> Any:
    """Return settings by which W&B gets what the run reports and nothing more, and gives up soon."""
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
