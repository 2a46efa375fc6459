"""A run in MLflow: grouped names, descriptions, nested runs of stages, traces and tables, in a real store."""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Metric, ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE, PERMISSION_DENIED
from mlflow.tracking import MlflowClient
from support.tracked_runs import episode_row, history, runs, tracker, wait_for

from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow
from temper.orchestrator.tracking.backend import DataSet, RunStatus
from temper.orchestrator.tracking.metric_names import GROUPS, display_name
from temper.orchestrator.tracking.mlflow.backend import LINE, merge_note
from temper.orchestrator.tracking.mlflow.run import MlflowRun
from temper.orchestrator.tracking.mlflow.stored_run import StoredRun
from temper.orchestrator.tracking.mlflow.traces import build_parts, build_trace, sample_rows
from temper.orchestrator.tracking.tracker import stage_of


@pytest.mark.parametrize(
    ("stage", "key", "of", "shown"),
    [
        ("rl", "env/math/tokens", None, "3_env/rl/math/tokens"),
        ("rl", "env/math/tokens", "rl", "3_env/math/tokens"),
        ("rl", "env/math/reward", None, "2_reward/rl/math"),
        ("rl", "env/math/reward", "rl", "2_reward/math"),
        ("rl", "env/math/parts/reward", None, "3_env/rl/math/parts/reward"),
        ("eval-sft", "math/avg_at_k", None, "9_evaluation/sft/math/avg_at_k"),
        ("rl.eval", "math/avg_at_k", None, "2_eval/rl/math/avg_at_k"),
        ("rl.eval", "math/avg_at_k", "rl", "2_eval/math/avg_at_k"),
        ("rl", "loss", None, "rl/loss"),
        ("rl", "own/thing", None, "rl/own/thing"),
        ("system", "cpu_percent", None, "system/cpu_percent"),
    ],
)
def test_a_name_stands_in_its_group(stage: str, key: str, of: str | None, shown: str) -> None:
    assert display_name(stage, key, of=of) == shown


def test_groups_sort_and_no_two_names_are_alike() -> None:
    keys = [(stage, f"{word}/x") for stage in ("rl", "sft", "rl-2") for word in GROUPS if word != "data"]
    names = [display_name(*key) for key in keys]
    assert len(set(names)) == len(names)
    assert [name[0] for name in sorted(names)] == sorted(name[0] for name in names)


def test_a_note_is_made_anew_below_what_people_wrote() -> None:
    first = merge_note("", "a [x](RUN_PAGE/y) ![z](RUN_FILE/z.svg)", page="#/e/1", file="get?path=")
    assert first == f"{LINE}\n\na [x](#/e/1/y) ![z](get?path=z.svg)"
    assert merge_note("look at this", "a", page="", file="") == f"look at this\n\n{LINE}\n\na"
    assert merge_note(f"mine\n\n{first}", "b", page="", file="") == f"mine\n\n{LINE}\n\nb"


def test_an_episode_has_its_turns_calls_and_grading_one_after_the_other() -> None:
    whole, *parts = build_parts(episode_row("shop", reward=1.0, calls=2), ended=100.0)
    assert [
        (part.name, part.kind, (part.began - whole.began) / 1e9, (part.ended - whole.began) / 1e9) for part in parts
    ] == [
        ("turn 1", "CHAT_MODEL", 0.5, 1.75),
        ("get", "TOOL", 1.75, 2.25),
        ("get", "TOOL", 1.75, 2.25),
        ("turn 2", "CHAT_MODEL", 2.25, 3.5),
        ("grading", "EVALUATOR", 3.5, 4.0),
    ]
    assert [part.outputs for part in parts[1:3]] == ["value 0", "value 1"]
    assert [message["role"] for message in parts[3].inputs["messages"]] == ["user", "assistant", "tool", "tool"]
    assert (whole.outputs["reward"], whole.outputs["correct"]) == (1.0, 1.0)
    timed = episode_row("shop", reward=1.0, calls=2)
    timed["turns"][0]["tool_spans"] = [
        {"name": "get", "arguments": {"key": 0}, "began_s": 0.125, "seconds": 0.25},
        {"name": "", "arguments": {}, "began_s": 0.375, "seconds": 0.0},
    ]
    _, _, *calls = list(build_parts(timed, ended=100.0))[:4]
    assert [(part.name, (part.began - whole.began) / 1e9, (part.ended - part.began) / 1e9) for part in calls] == [
        ("get", 1.875, 0.25),
        ("tool call 2", 2.125, 0.0),
    ]
    assert [(part.inputs, part.outputs) for part in calls] == [
        ({"key": 0}, "value 0"),
        (timed["turns"][0]["answer"], "value 1"),
    ]


def test_rows_are_drawn_evenly_over_a_file_and_what_is_torn_or_gone_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rl-1.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(10)) + '{"n": 1')
    assert [place for place, _ in sample_rows(path, 3)] == [0, 3, 7]
    assert [place for place, _ in sample_rows(path, 99)] == list(range(10))
    assert list(sample_rows(tmp_path / "gone.jsonl", 3)) == []


def test_each_stage_has_a_nested_run_that_is_resumed_and_cut_back(tmp_path: Path, store: str) -> None:
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store)
    one.stage("sft", {"sft.steps": "2"})
    for step in (1, 2):
        log.append("sft", step, {"train/loss": 1.0 / step})
    one.stage("sft", {"sft.steps": "2"}, 12.34)
    one.stage("rl", {"rl.steps": "3"})
    for step in (1, 2):
        log.append("rl", step, {"train/loss": float(step)})
        log.append("rl.eval", step, {"math/avg_at_k": 0.5})
    one.close(RunStatus.KILLED, timeout_s=120)
    first = runs(tmp_path, store)
    statuses = {name: run.info.status for name, run in first.items()}
    assert statuses == {"demo": "KILLED", "sft": "FINISHED", "rl": "KILLED"}
    assert (first["sft"].data.params, first["sft"].data.tags["temper.seconds"]) == ({"sft.steps": "2"}, "12.3")
    assert first["rl"].data.metrics == {"4_train/loss": 2.0, "2_eval/math/avg_at_k": 0.5}

    log.truncate("rl", 1)  # the next process resumes from a checkpoint
    log.truncate("rl.eval", 1)
    two = tracker(tmp_path, store)
    two.stage("sft", {"sft.steps": "2"}, 12.34)
    two.stage("rl", {"rl.steps": "3"})
    for step in (2, 3):
        log.append("rl", step, {"train/loss": -float(step)})
    two.stage("rl", {"rl.steps": "3"}, 5.0)
    two.close(RunStatus.FINISHED, timeout_s=120)
    last = runs(tmp_path, store)
    assert {run.info.status for run in last.values()} == {"FINISHED"}
    assert last["sft"].info.run_id == first["sft"].info.run_id
    replaced = runs(tmp_path, store, ViewType.DELETED_ONLY)
    assert {name: run.data.tags["temper.replaced_by"] for name, run in replaced.items()} == {
        name: last[name].info.run_id for name in ("demo", "rl")
    }
    for name in ("sft", "rl"):
        assert last[name].data.tags["mlflow.parentRunId"] == last["demo"].info.run_id
    assert history(store, last["rl"], "4_train/loss") == {1: 1.0, 2: -2.0, 3: -3.0}
    assert history(store, last["demo"], "4_train/rl/loss") == {1: 1.0, 2: -2.0, 3: -3.0}
    assert history(store, last["sft"], "4_train/loss") == {1: 1.0, 2: 0.5}

    MlflowClient(store).delete_run(last["rl"].info.run_id)  # noted, without delay
    said: list[str] = []
    three = tracker(tmp_path, store, notify=said.append)
    three.stage("rl", {})
    log.append("rl", 4, {"train/loss": -4.0})
    three.close(RunStatus.FINISHED, timeout_s=120)
    assert history(store, last["demo"], "4_train/rl/loss") == {1: 1.0, 2: -2.0, 3: -3.0, 4: -4.0}
    assert [last["rl"].info.run_id in line for line in said] == [True]


def test_episodes_become_traces_once_and_go_with_a_run_that_is_replaced(tmp_path: Path, store: str) -> None:
    client, log = MlflowClient(store), MetricsLog(tmp_path / "metrics.jsonl")
    path = tmp_path / "trajectories" / "rl-2.jsonl"
    path.parent.mkdir()
    path.write_text(
        "".join(json.dumps(episode_row("shop", reward=reward, calls=1)) + "\n" for reward in (1.0, 0.0, None))
    )
    os.utime(path, (1.7e9, 1.7e9))
    log.append("rl", 2, {"x": 1.0})
    for start in range(3):
        if start == 2:
            log.append("rl", 2, {"x": 2.0})  # replaces the row that was sent
        one = tracker(tmp_path, store, traces=2)
        one.describe("[traces](RUN_PAGE/traces)")
        one.episodes(path)
        one.close(RunStatus.FINISHED, timeout_s=120)
        run = runs(tmp_path, store)["demo"]
        traces = client.search_traces(locations=[run.info.experiment_id])
        assert [trace.info.trace_metadata["mlflow.sourceRun"] for trace in traces] == [run.info.run_id] * 2
        assert run.data.tags["mlflow.note.content"].endswith(f"/runs/{run.info.run_id}/traces)")
    (record,) = (tmp_path / "tracking").glob("*.traced")
    record.unlink()  # as after a kill within a file
    log.append("rl", 2, {"x": 3.0})
    tracker(tmp_path, store, traces=2).close(RunStatus.FINISHED, timeout_s=120)
    assert list(client.search_traces(locations=[run.info.experiment_id])) == []
    right = next(trace for trace in traces if trace.info.tags["line"] == "1")
    assert (right.info.request_time, right.info.execution_duration) == (1_699_999_996_000, 4000)
    assert {one.name: one.feedback.value for one in right.info.assessments} == {"correct": True, "reward": 1.0}
    spans = [
        ("shop", "AGENT"),
        ("turn 1", "CHAT_MODEL"),
        ("get", "TOOL"),
        ("turn 2", "CHAT_MODEL"),
        ("grading", "EVALUATOR"),
    ]
    assert [(span.name, span.span_type) for span in right.data.spans] == spans
    assert right.data.spans[2].outputs == "value 0"


def test_secrets_in_failures_and_verdicts_are_blanked() -> None:
    told = "no answer of https://user:s3cret@host"
    failed = episode_row("shop", reward=None) | {"failure": {"kind": "env", "message": told}, "detail": told}
    info, spans = build_trace(failed, 0, ended=1.7e9, experiment="1", run="r", file="f")
    assert info.response_preview == "env: no answer of https://[blanked]@host"
    assert "s3cret" not in str([info.to_dict(), *(span.to_dict() for span in spans)])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("create_registered_model", PERMISSION_DENIED),
        ("log_inputs", INTERNAL_ERROR),
        ("log_batch", PERMISSION_DENIED),
        pytest.param("log_batch", INTERNAL_ERROR, marks=pytest.mark.slow),
    ],
)
def test_what_a_server_never_takes_is_said_once_and_holds_up_no_metrics(
    call: str, code: int, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts only metrics in `log_batch`."""
    whole = getattr(MlflowClient, call)

    def refused(client: MlflowClient, *given: Any, **named: Any) -> None:
        if "metrics" not in named:
            raise MlflowException("not for you", error_code=code)
        whole(client, *given, **named)

    monkeypatch.setattr(MlflowClient, call, refused)
    said: list[str] = []
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store, notify=said.append)
    one.params({"seed": "7"})
    one.describe("a note")
    one.stage("rl", {}, data=[DataSet(name="math", digest="d", kind="generated", source="math", context="train")])
    if call == "create_registered_model":  # a registered model would affect other tests
        one.model(tmp_path / "checkpoints", {})
    for step in range(1, 21):
        log.append("rl", step, {"train/loss": 1.0})
    wait_for(lambda: list((tmp_path / "tracking").glob("*.sent")))
    wait_for(lambda: len(history(store, runs(tmp_path, store)["demo"], "4_train/rl/loss")) == 20)  # long before the end
    one.close(RunStatus.FINISHED, timeout_s=60)
    statuses = {name: run.info.status for name, run in runs(tmp_path, store).items()}
    assert statuses == {"demo": "FINISHED", "rl": "FINISHED"}
    assert history(store, runs(tmp_path, store)["rl"], "4_train/loss") == dict.fromkeys(range(1, 21), 1.0)
    assert len(said) == len(set(said)) <= 3
    assert any("not for you" in line for line in said)


def stored(folder: Path, uri: str, traces: int | None = None) -> StoredRun:
    return StoredRun(
        name="demo",
        uri=uri,
        experiment="x",
        metrics=folder / "metrics.jsonl",
        state_dir=folder / "tracking",
        artifacts=folder,
        traces=traces,
    )


def test_of_a_batch_that_mlflow_rejects_all_other_metrics_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    said: list[str] = []

    def log_batch(client: MlflowClient, run_id: str, metrics: Sequence[Metric]) -> None:
        if any(metric.key == "rl/b" for metric in metrics):
            raise MlflowException("not this one", error_code=INVALID_PARAMETER_VALUE)
        taken.extend(metric.key for metric in metrics)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    monkeypatch.setattr(MlflowRun, "require_run", lambda run: None)
    run = MlflowRun(stored(tmp_path, "http://127.0.0.1:9"), notify=said.append)
    run.send_rows([MetricsRow(stage="rl", step=n, time=1.0, values={"a": 1.0, "b": 1.0}) for n in range(5)])
    assert taken == ["rl/a"] * 5
    assert len(said) == 1


def test_an_evaluation_is_a_table_and_a_point_of_each_environments_accuracy(tmp_path: Path, store: str) -> None:
    tasks = {"math": [{"key": "math-key", "content": "c", "right": 1, "scored": 2, "failed": 1}]}
    (tmp_path / "eval").mkdir()
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "eval-sft.jsonl").write_text(json.dumps(episode_row("math", reward=1.0)) + "\n")
    for order, (label, accuracy) in enumerate((("init", None), ("sft", 0.5))):
        result = {"label": label, "order": order, "envs": {"math": {"avg_at_k": accuracy}}, "tasks": tasks}
        (tmp_path / "eval" / f"{label}.json").write_text(json.dumps(result))
    for traces in (8, 8, 0):  # resent and replaced by the next process; without text at 0
        os.utime(tmp_path / "eval" / "sft.json")  # as in a copied folder
        one = tracker(tmp_path, store, traces=traces)
        for label in ("init", "sft"):
            one.artifact(tmp_path / "eval" / f"{label}.json")
        one.close(RunStatus.FINISHED, timeout_s=120)
        run = runs(tmp_path, store)["demo"]
        table = json.loads(Path(run.info.artifact_uri.removeprefix("file://"), "eval/sft.table.json").read_text())
        texts = {"prompt": "6*7=?", "answer": "42", "detail": "as it should be"}
        cells = {"task": "math-key", "accuracy": 0.5, "env": "math", "right": 1, "scored": 2, "failed": 1}
        assert [list(zip(table["columns"], line, strict=True)) for line in table["data"]] == [
            list((texts | cells if traces else cells).items())  # in this order: the page shows the first two
        ]
        assert history(store, run, "1_accuracy/math") == {1: 0.5}
        shown = [entry["path"] for entry in json.loads(run.data.tags["mlflow.loggedArtifacts"])]
        assert shown == ["eval/sft.table.json", "eval/init.table.json"]


def test_a_server_gets_no_text_unless_it_is_asked_for() -> None:
    served, local = (stored(Path(), uri) for uri in ("http://127.0.0.1:9", "sqlite:///mlflow.db"))
    assert [(run.traces_per_file, run.model_name) for run in (served, local)] == [(0, ""), (8, "temper-demo")]
    assert stored(Path(), "http://127.0.0.1:9", 3).traces_per_file == 3


def test_data_and_the_last_checkpoint_have_their_pages_and_are_told_once(tmp_path: Path, store: str) -> None:
    client = MlflowClient(store)
    heldout = DataSet(
        name="math", digest="d2", kind="file", source="gsm8k.jsonl", context="eval", facts=(("level", 1),)
    )
    trained = DataSet(name="math", digest="d1", kind="generated", source="math, level 1", context="train")
    for _ in range(2):
        one = tracker(tmp_path, store)
        one.stage("sft", {}, data=[trained])
        one.stage("eval-sft", {}, data=[heldout])
        one.model(tmp_path / "checkpoints" / "sft" / "000002", {"stage": "sft"})
        one.close(RunStatus.FINISHED, timeout_s=120)
        found = runs(tmp_path, store)
        read = {
            name: {(data.dataset.digest, data.tags[0].value) for data in run.inputs.dataset_inputs}
            for name, run in found.items()
        }
        assert read == {
            "demo": {("d1", "train"), ("d2", "eval")},
            "sft": {("d1", "train")},
            "eval-sft": {("d2", "eval")},
        }
        (version,) = client.search_model_versions("name = 'temper-demo'")
        assert (version.source, version.run_id) == (f"{tmp_path}/checkpoints/sft/000002", found["demo"].info.run_id)
        assert client.get_model_version_by_alias("temper-demo", "newest").version == version.version


@pytest.mark.parametrize(
    ("name", "stage"), [("rl-100", "rl"), ("rl2-1", "rl2"), ("eval-rl2", "eval-rl2"), ("eval-rl-4", "eval-rl-4")]
)
def test_the_newest_file_of_episodes_of_a_stage_replaces_one_that_waits(name: str, stage: str) -> None:
    assert stage_of(Path(f"{name}.jsonl")) == stage


def test_the_machine_is_watched_from_where_the_last_process_ended(tmp_path: Path, store: str) -> None:
    def watched() -> dict[int, float]:
        found = MlflowClient(store).get_experiment_by_name(tmp_path.name)
        run = runs(tmp_path, store).get("demo") if found else None
        return history(store, run, "system/cpu_utilization_percentage") if run else {}

    def more_than(count: int) -> bool:
        return len(watched()) > count

    for _ in range(2):
        before = len(watched())
        one = tracker(tmp_path, store, system_s=0.2)
        wait_for(partial(more_than, before + 1))
        one.close(RunStatus.FINISHED, timeout_s=60)
    assert set(watched()) == set(range(len(watched())))
