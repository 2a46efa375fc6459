"""The data sets that a run read, and the model that it left, where MLflow has pages for them. Neither is copied."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.exceptions import MlflowException

from temper.orchestrator.tracking.data_set import DataSet
from temper.orchestrator.tracking.mlflow.batches import REJECTED
from temper.orchestrator.tracking.tracking_error import first_line, is_refusal

CONTEXT = "mlflow.data.context"
NEWEST = "newest"
"""The alias of the version that was registered last."""
EXISTS = "RESOURCE_ALREADY_EXISTS"


def log_data(client: Any, run_id: str, data: Sequence[DataSet]) -> str:
    """Tell which data a run read; telling it twice leaves it once. Return why the server refuses it, "" where it does not."""
    inputs = [
        DatasetInput(
            Dataset(
                name=one.name,
                digest=one.digest,
                source_type=one.kind,
                source=json.dumps({"uri": one.source}),
                profile=json.dumps(dict(one.facts)),
            ),
            [InputTag(CONTEXT, one.context)],
        )
        for one in data
    ]
    try:
        client.log_inputs(run_id, datasets=inputs)
    except MlflowException as error:  # the rows of a run that replaces another wait for this
        if not is_refusal(error):
            raise
        return first_line(error)
    return ""


def register(client: Any, name: str, model: Path, *, run_id: str, tags: dict[str, str]) -> str:
    """Make a checkpoint the newest version of a registered model, by its path; once for each run and checkpoint.

    Return why the server refuses that, as it does with a path of another machine; "" where it does not.
    """
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != EXISTS:
            raise
    found = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    known = [version for version in found if version.source == str(model)]
    try:
        version = known[0] if known else client.create_model_version(name, source=str(model), run_id=run_id, tags=tags)
    except MlflowException as error:
        if error.error_code not in REJECTED:
            raise
        return first_line(error)
    client.set_registered_model_alias(name, NEWEST, version.version)
    return ""
