"""One run in MLflow: found again or created, then sent to. The home of MLflow. Every call may block and may raise.

MLflow takes nothing back, so a run whose metrics file lost rows that were sent, as it does where a stage goes on from a
checkpoint, is replaced there: a new one gets all that the file has, and the old one is tagged and deleted (`mlflow gc`
empties that bin).
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads these when it is imported
os.environ.setdefault("DO_NOT_TRACK", "true")

from mlflow.entities import LifecycleStage, Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.tracking.data_set import DataSet
from temper.orchestrator.tracking.mlflow.batches import LONGEST_VALUE, REJECTED, Batches
from temper.orchestrator.tracking.mlflow.files import Files
from temper.orchestrator.tracking.mlflow.registry import log_data, register
from temper.orchestrator.tracking.notes import NOTE, merged_note
from temper.orchestrator.tracking.remembered import Remembered, remember, remembered
from temper.orchestrator.tracking.tracking_error import RunDeletedError, first_line
from temper.orchestrator.tracking.unsent_rows import UnsentRows

ROWS_AT_ONCE = 100
MARK = "temper.run"
"""The tag by which a run is found whose id was not stored, since the process was killed just when it was created."""
STAGE_MARK = "temper.stage_run"
"""The same of the nested run of a stage, so that runs can be told from what is in them."""
REPLACED_BY = "temper.replaced_by"
"""The tag of a deleted run that says which run has its surviving history."""
OWN_TAGS = ("temper.", "event.", "now.", "mlflow.runName")
"""Tags that are made anew in a run that replaces another; those of people move with it."""
PARENT = "mlflow.parentRunId"
"""The tag of a nested run that names the run in which it is."""
STAGE = "temper.stage"
"""The tag of a nested run that names its stage."""
SECONDS = "temper.seconds"
"""The tag of a nested run that says how long its stage took, over all processes that worked on it."""


class MlflowRun:
    """The run of a metrics file at a tracking server. `memory` is the folder in which it is remembered.

    `<id>.sent` there says which rows of the file it has.
    """

    def __init__(
        self,
        uri: str,
        *,
        experiment: str,
        name: str,
        metrics: Path,
        memory: Path,
        say: Callable[[str], None],
        parent: "MlflowRun | None" = None,
        traces: int = 0,
    ) -> None:
        """With a `parent` it is the nested run of the stage `name`, which gets the rows of that stage alone.

        `traces` is how many episodes of each file of trajectories become traces.
        """
        _be_brief()
        self._uri = uri
        self._experiment_name = experiment
        self._name = name
        self._metrics = metrics
        self._memory = memory
        self._say = say
        self._parent = parent
        self._stages = () if parent is None else (name, evaluations_of(name))
        self._traces = traces
        self._note: str | None = None
        self._data: tuple[DataSet, ...] = ()
        self._params: dict[str, str] = {}
        self._given: dict[str, str] = {}
        """The configuration as this process was told it."""
        self._due: list[Callable[[], None]] = []
        """The calls that it lacks besides its rows since it was connected, or replaced another run."""
        self._unsent = self._record("nothing")

    @property
    def unsent(self) -> UnsentRows:
        """The rows of the metrics file that did not arrive."""
        return self._unsent

    def connect(self, artifacts: Path) -> None:
        """Find the run, or create it; nothing is sent before its id is stored.

        A new experiment in a local store keeps its files in the folder `artifacts`. Raise `RunDeletedError`.
        """
        if self._uri.startswith("sqlite:///"):
            artifacts.parent.mkdir(parents=True, exist_ok=True)
        self._client: Any = MlflowClient(self._uri)
        self._batches = Batches(self._client, self._uri, check=self.require_there, say=self._say)
        self._files = Files(self._client, self._batches, root=self._metrics.absolute().parent, traces=self._traces)
        self._experiment_id = self._experiment(artifacts)
        self._adopt(remembered(self._memory))

    @property
    def run_id(self) -> str:
        """Its id, once it is connected; another one after rows that were sent have been cut off the file."""
        return self._id

    def send_rows(self) -> None:
        """Deliver all rows that are not there yet. Delivering one twice leaves one: time and value are the same."""
        if self._unsent.is_cut():
            self._begin_anew()
        while lines := self._unsent.next(ROWS_AT_ONCE):
            rows = self._unsent.rows(lines, say=self._say)
            self._unsent.offer(lines)
            self._batches.rows(self._id, rows, of=None if self._parent is None else self._name)
            self._unsent.done(lines)

    def take_due(self) -> list[Callable[[], None]]:
        """Return the calls that the run lacks besides its rows, for the caller to make after those. Each is returned once."""
        due, self._due = self._due, []
        return due

    def send_due(self) -> None:
        """Make those calls. One that raises is made again the next time."""
        while self._due:
            self._due[0]()
            del self._due[0]

    def require_there(self) -> None:
        """Raise `RunDeletedError` if it was deleted, or is there no more, and an error of MLflow if the server is away."""
        self._require_active(self._run(self._id))

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration. MLflow never changes a parameter: one that differs now becomes the tag `now.<name>`."""
        self._given |= values
        cut = {name: value[:LONGEST_VALUE] for name, value in values.items()}
        self._batches.params(self._id, {name: value for name, value in cut.items() if name not in self._params})
        changed = {name: value for name, value in cut.items() if self._params.get(name, value) != value}
        self._batches.tags(self._id, {f"now.{name}": value for name, value in changed.items()})

    def describe(self, note: str) -> None:
        """Deliver the description, below what people have written there."""
        self._note = note
        there = self._client.get_run(self._id).data.tags.get(NOTE, "")
        page = f"#/experiments/{self._experiment_id}/runs/{self._id}"
        file = f"get-artifact?run_uuid={self._id}&path="
        self._batches.tags(self._id, {NOTE: merged_note(there, note, page=page, file=file)})

    def send_data(self, data: Sequence[DataSet]) -> None:
        """Tell which data is read; where the server refuses it, that is said."""
        self._data = tuple(dict.fromkeys((*self._data, *data)))
        if data and (refused := log_data(self._client, self._id, data)):
            self._say(f"tracking: {self._uri} refuses the data of {self._name} ({refused})")

    def register(self, name: str, model: Path, facts: dict[str, str]) -> None:
        """Make a checkpoint the newest version of a registered model; where the server refuses it, that is said."""
        if refused := register(self._client, name, model, run_id=self._id, tags=facts):
            self._say(f"tracking: {self._uri} does not register {model} ({refused})")

    def store(self, path: Path) -> None:
        """Deliver a file, to where it lies in the run's folder. This and the next are all that another thread may call."""
        self._files.store(path, run_id=self._id)

    def store_episodes(self, path: Path) -> None:
        """Deliver a sample of the episodes in a file of trajectories."""
        run_id = self._id
        record = self._memory / f"{run_id}.traced"
        self._files.store_episodes(path, experiment=self._experiment_id, run_id=run_id, record=record)

    def end(self, status: str, *, seconds: float | None = None) -> None:
        """Mark the run as ended; `seconds` is what a stage took."""
        self._unsent.close()
        if seconds is not None:
            self._batches.tags(self._id, {SECONDS: f"{seconds:.1f}"})
        self._client.set_terminated(self._id, status=status)

    def _begin_anew(self) -> None:
        """Go on in a new run, which will get the rows that the file still has, in the place of the one that has more."""
        known = remembered(self._memory)
        if known.run_id is not None:
            known = Remembered(replaced=(*known.replaced, known.run_id))
            remember(self._memory, known)
        self._adopt(known)
        note = [] if self._note is None else [partial(self.describe, self._note)]
        self._due[:0] = [partial(self.send_params, self._given), *note, partial(self.send_data, self._data)]

    def _adopt(self, known: Remembered) -> None:
        """Find or create the run that is remembered, and be it."""
        run = self._run(known.run_id) or self._marked(known.mark)
        if run is None:
            if known.run_id is not None:
                self._say(f"tracking: {self._uri} has no run {known.run_id}; a new one is begun there, with all rows")
            run = self._created(known)
        self._id = str(run.info.run_id)
        remember(self._memory, replace(known, run_id=self._id))
        self._require_active(run)
        self._client.update_run(self._id, status="RUNNING")
        self._params = dict(run.data.params)
        self._unsent.close()
        self._unsent = self._record(self._id)
        self._due = [self._delete_replaced]  # the last one: not before the new run has everything

    def _record(self, run_id: str) -> UnsentRows:
        return UnsentRows(self._metrics, self._memory / f"{run_id}.sent", self._stages)

    def _delete_replaced(self) -> None:
        """Tag and delete the runs that this one replaces. A server that refuses is named, and the run stays there."""
        known = remembered(self._memory)
        for old in known.replaced:
            try:
                self._delete(old)
            except MlflowException as error:
                if error.error_code not in (*REJECTED, "PERMISSION_DENIED"):
                    raise
                self._say(
                    f"tracking: {self._uri} keeps the run {old} ({first_line(error)}), which {self._id} replaces: it "
                    f"has rows that metrics.jsonl has no more"
                )
            for ending in ("sent", "traced"):
                (self._memory / f"{old}.{ending}").unlink(missing_ok=True)
        if known.replaced:
            remember(self._memory, replace(known, replaced=()))

    def _delete(self, old: str) -> None:
        run = self._run(old)
        if run is not None and run.info.lifecycle_stage != LifecycleStage.DELETED:
            self._client.set_tag(old, REPLACED_BY, self._id)
            for nested in self._tagged(PARENT, old, ViewType.ACTIVE_ONLY):
                self._client.set_tag(nested.info.run_id, PARENT, self._id)
            if self._traces or (self._memory / f"{old}.traced").exists():  # which is not written within a file
                self._files.forget_traces(self._experiment_id, old)
            self._client.update_run(old, status="KILLED")
            self._client.delete_run(old)

    def _created(self, known: Remembered) -> Run:
        """Create the run, with the beginning and the people's tags of the one that it replaces."""
        old = self._run(known.replaced[-1]) if known.replaced else None
        began, tags = (None, {}) if old is None else (old.info.start_time, old.data.tags)
        kept = {name: value for name, value in tags.items() if not name.startswith(OWN_TAGS)}
        own = {MARK: known.mark}
        if self._parent is not None:
            own = {STAGE_MARK: known.mark, STAGE: self._name, PARENT: self._parent.run_id}
        made: Run = self._client.create_run(self._experiment_id, start_time=began, run_name=self._name, tags=kept | own)
        return made

    def _run(self, run_id: str | None) -> Run | None:
        try:
            return None if run_id is None else self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _marked(self, mark: str) -> Run | None:
        found = self._tagged(MARK if self._parent is None else STAGE_MARK, mark, ViewType.ALL)
        return found[0] if found else None

    def _tagged(self, tag: str, value: str, view: int) -> list[Run]:
        """Return the runs of the experiment that bear a tag of this value."""
        query = f"tags.`{tag}` = '{value}'"
        return list(self._client.search_runs([self._experiment_id], filter_string=query, run_view_type=view))

    def _require_active(self, run: Run | None) -> None:
        if run is None or run.info.lifecycle_stage == LifecycleStage.DELETED:
            raise RunDeletedError(
                f"the run {self._id} was deleted at {self._uri}, so nothing more is sent; restore it there, or delete "
                f"{self._memory} to begin a new one; metrics.jsonl has all"
            )

    def _experiment(self, artifacts: Path) -> str:
        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            location = artifacts.as_uri() if self._uri.startswith("sqlite:") else None
            return str(self._client.create_experiment(self._experiment_name, artifact_location=location))
        if found.lifecycle_stage == LifecycleStage.DELETED:
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)


def known_experiments(uri: str) -> int:
    """Return how many experiments a store knows, up to 100. Raise whatever MLflow raises where it does not answer."""
    _be_brief()
    client: Any = MlflowClient(uri)
    return len(client.search_experiments(max_results=100))


def _be_brief() -> None:
    """Let MLflow give up soon, and say little."""
    for variable, value in (("TIMEOUT", "5"), ("MAX_RETRIES", "0"), ("BACKOFF_FACTOR", "0")):
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{variable}", value)
    for logger in ("mlflow", "alembic"):  # their notes on a new database are no news of the run
        logging.getLogger(logger).setLevel(logging.WARNING)
    # it prints the stack of each error that it raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
