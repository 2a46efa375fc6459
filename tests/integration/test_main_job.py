"""The main job through the command line, on the real engines: Ray, vLLM, DeepSpeed, MLflow."""

import contextlib
import json
import math
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from support import tiny_models
from support.documents import tutorial_block as block
from support.fault_job import DEMO, SMALL, Job, Runs, rows, runs
from support.metric_names import unexplained_of
from transformers import AutoModelForCausalLM

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.source import source_commit

TWO_RANKS = ["learner.ranks=2", "learner.zero_stage=3", "learner.transport=broadcast"]
LAST = (
    "stages=[init,sft,rft,eval,rl,distill,dpo,{{sft: {{name: sft_last, optim: {{kind: {kind}}}, steps: {steps}}}}},"
    "report]"
)
"""The stages. The last is a second `sft`."""
ENDLESS = 1000
"""Steps, so that a run is stopped or killed in their middle even on a busy machine."""
JUDGED = "binary_score(right"
"""The score expression of the documents' environment."""


def trajectories(run: Path) -> list[dict[str, Any]]:
    lines = [
        line for path in sorted((run / "trajectories").glob("rl-*.jsonl")) for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines]


def tracked_runs(client: MlflowClient) -> list[Run]:
    """The runs in the tracker, without their stage runs."""
    found = client.search_runs([client.get_experiment_by_name("temper").experiment_id])
    return [run for run in found if "mlflow.parentRunId" not in run.data.tags]


def open_ports(job: Job, actor: str) -> list[list[str]]:
    """Return the TCP addresses beyond loopback on which each process of an actor listens, such as `ray::TrainerWorker`."""
    ports = []
    for process in job.actors(actor):
        with contextlib.suppress(psutil.NoSuchProcess):
            listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            ports.append([f"{one.laddr.ip}:{one.laddr.port}" for one in listening if one.laddr.ip != "127.0.0.1"])
    return ports


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs(DEMO) as made:
        yield made


@pytest.mark.timeout(4000)
def test_a_run_that_is_stopped_and_killed_leaves_everything_a_run_leaves(
    found: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks with partitioned parameters are stopped in mid-training, one rank continues, and its driver is killed."""
    assert JUDGED in block("python")
    (tmp_path / "backwards.py").write_text(block("python"))  # the documents' own environment, beside the others
    (tmp_path / "pleased.py").write_text(
        block("python").replace("backwards", "pleased").replace(JUDGED, "binary_score(True")
    )
    (tmp_path / "torn.py").write_text(
        block("python").replace("backwards", "torn").replace(JUDGED, "binary_score(len(parsed.answer) % 2 == 0")
    )
    teacher = tiny_models.qwen3(tmp_path / "teacher")  # of another family, with the same tokenizer
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [
        *SMALL,
        "sft.steps=4",
        "sft.max_tokens=64",
        "sft.on_error=skip",
        "envs.spelling.kind=backwards",
        "envs.easy={kind: pleased, thinking: false}",
        "envs.coin={kind: torn, thinking: false}",
        "rft={tasks: 24, samples: 4, steps: 2, batch_size: 4}",
        "rft.shares={math: 0, code: 0, tool_use: 0, spelling: 0, coin: 0}",
        f"distill={{teacher: {teacher}, steps: 2, groups_per_step: 4, group_size: 2}}",
        "dpo={tasks: 24, samples: 4, steps: 3, batch_size: 4, optim: {learning_rate: 1.0e-3, warmup_steps: 0}}",
        "dpo.shares={math: 0, code: 0, tool_use: 0, spelling: 0, easy: 0}",
        "rl.thinking={budget: 0.6, budgets: [4, 8], no_thinking: 0.1, nested_budgets: [2, 6]}",
        "rl.loss.malformed_thinking=-1.0",
        "eval.budgets=[4]",
        "checkpoints.trajectories_every=1",
        "eval.no_thinking=true",
    ]
    job = found.start("job", *arguments, LAST.format(kind="adamw", steps=4), f"rl.steps={ENDLESS}", *TWO_RANKS)
    run = job.run
    job.wait_until(job.reached("rl", 3), "a step of two ranks")
    for actor, count in (("ray::TrainerWorker", 2), ("ray::RolloutWorker", 1)):
        ports = open_ports(job, actor)
        assert [len(one) for one in ports] == [1] * count, (actor, ports)  # Ray's own, which asks for a token
    assert open_ports(job, "VLLM::EngineCore") == [[]]
    job.process.send_signal(signal.SIGTERM)
    status, output = job.end(), job.output
    assert status == 130, output
    assert "resume" in output
    assert "Writing model shards" in (run / "logs" / "driver.log").read_text()
    assert "Writing model shards" not in output
    printed = [file.read_text(errors="replace") for file in (run / "logs" / "ray").glob("worker-*")]
    assert [any(who in text for text in printed) for who in ("TrainerWorker", "RolloutWorker")] == [True, True]
    steps = len(rows(run, "rl")) + 3
    until_stop = RunDir(run).state().seconds["rl"]

    client = MlflowClient(tracking_uri=f"sqlite:///{found.folder}/mlflow.db")
    (tracked,) = tracked_runs(client)
    assert tracked.info.status == "KILLED"

    arguments += ["rl.optim.learning_rate=1.2e-4", "rl.timeout_s=301", f"rl.steps={steps}"]
    job = found.start("job", *arguments, LAST.format(kind="muon", steps=ENDLESS))
    job.wait_until(job.reached("sft_last", 1), "a step of the last stage")
    job.kill()
    assert "rl: resuming after step" in job.output
    assert "sandbox level " in job.output
    arguments.append(LAST.format(kind="muon", steps=4))
    job = found.start("job", *arguments)
    assert job.end() == 0, job.output
    assert [row.step for row in rows(run, "rl")] == list(range(1, steps + 1))
    assert [row.step for row in rows(run, "sft")] == list(range(1, 5))
    assert [row.step for row in rows(run, "sft_last")] == list(range(1, 5))  # the stage again, under a name of its own
    reached = RunDir(run).state()
    assert reached.model == "checkpoints/sft_last/000004"
    assert reached.seconds["rl"] > until_stop > 0  # both starts count
    assert reached.commits == list(filter(None, [source_commit()]))
    assert all(row.values["train/mismatch_abs"] < 1e-4 for row in rows(run, "rl") if not row.values["train/lag_max"])
    assert all(row.values["train/lag_max"] <= 1 for row in rows(run, "rl"))

    report = json.loads((run / "report.json").read_text())
    assert set(report["accuracy"]) == {"math", "code", "tool_use", "spelling", "easy", "coin"}
    assert [row.step for row in rows(run, "rft")] == [1, 2]
    data = {event["stage"]: event["what"] for event in report["events"] if event["kind"] == "data"}
    (changed,) = (event for event in report["events"] if (event["kind"], event["stage"]) == ("changed", "rl"))
    assert "rl.optim.learning_rate" in changed["what"]
    assert "rl.timeout_s" not in changed["what"]  # the deadline is free
    missing = sum(row.values["data/filtered"] for row in rows(run, "sft"))
    assert 0 < missing < 4 * 16  # demonstrations of more than 64 tokens: counted, not cut
    assert data["sft"] == {"sequences": str(4 * 16), "too long and filtered": f"{missing:.0f}"}
    assert f"sft: {missing:.0f} of 64 sequences were too long" in output
    assert {"source", "rows", "epochs"} <= data["rft"].keys() & data["dpo"].keys()
    distilled, preferred = rows(run, "distill"), rows(run, "dpo")
    assert [row.step for row in distilled] == [1, 2]
    assert all(row.values["train/kl"] > 0.1 for row in distilled)  # from a teacher that knows nothing
    assert all(row.values["train/kl"] == pytest.approx(row.values["train/loss"], rel=0.2) for row in distilled)
    assert all(row.values["rollout/answers"] == 8 for row in distilled)
    assert any("/reward" in name for name in distilled[0].values)
    assert [row.step for row in preferred] == [1, 2, 3]
    assert preferred[0].values["train/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert preferred[0].values["train/margin"] == pytest.approx(0.0, abs=1e-6)
    assert all(0 <= row.values["train/accuracy"] <= 1 and row.values["train/grad_norm"] > 0 for row in preferred)
    assert preferred[-1].values["train/margin"] != 0.0
    assert "<svg" in (run / "report.html").read_text() or "data:image" in (run / "report.html").read_text()
    trained = run / "checkpoints" / "rl" / f"{steps:06}"
    assert AutoModelForCausalLM.from_pretrained(trained).config.model_type == "nemotron_h"
    assert (trained / "tokenizer.json").is_file()  # the one it continued from is gone

    assert any("env/spelling/reward" in row.values for row in rows(run, "rl"))  # the user's own environment
    sampled = [turn for t in trajectories(run) for turn in t["turns"]]
    assert sampled
    assert all(len(t["sampled_ids"]) == len(t["logprobs"]) == len(t["versions"]) for t in sampled)
    limited = [
        (t["thinking"]["budget"], turn) for t in trajectories(run) if t["thinking"]["budget"] for turn in t["turns"]
    ]
    assert {turn["closed"] for _, turn in limited} <= {"itself", "line_end", "abrupt", "never"}
    within = [len(turn["sampled_ids"]) <= budget + 1 for budget, turn in limited if turn["closed"] == "never"]
    assert all(within)  # the model ended its turn before its budget did
    assert any(any(turn["injected"]) for _, turn in limited)
    assert all([p is None for p in turn["logprobs"]] == turn["injected"] for turn in sampled)
    forced = [(t, one) for t in trajectories(run) for one in t["forced_answers"]]
    assert forced
    for t, one in forced:
        (whole,), turn, budget = t["turns"], one["turns"][0], one["thinking"]["budget"]
        start = turn["injected"].index(True) if any(turn["injected"]) else len(whole["sampled_ids"])
        assert start in (budget, len(whole["sampled_ids"]))  # the forced end, or the limit of the unlimited answer
        assert turn["sampled_ids"][:start] == whole["sampled_ids"][:start]
        assert (one["reward"] is None) == (one["failure"] is not None)

    (tracked,) = tracked_runs(client)
    assert tracked.info.status == "FINISHED"
    history = Counter(m.step for m in client.get_metric_history(tracked.info.run_id, "4_train/rl/loss"))
    assert history == Counter(range(1, steps + 1))
    kept = {file.path for file in client.list_artifacts(tracked.info.run_id)}
    assert kept >= {"report.html", "report.json"}
    assert not [path for path in kept if path.endswith(".jsonl")]  # prompts and answers stay here

    assert unexplained_of(run / "metrics.jsonl") == []  # docs/metrics.md has every name
    before = (run / "metrics.jsonl").read_text()
    state = (run / "manifest.json").read_text()
    assert (
        main(["run", str(DEMO), f"runs_dir={found.folder}", "name=job", *arguments]) == 0
    )  # all is done: nothing runs again
    assert (run / "metrics.jsonl").read_text() == before
    assert (run / "manifest.json").read_text() == state
