"""The main job through the command line, on the real engines: Ray, vLLM, DeepSpeed, MLflow."""

import contextlib
import json
import math
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class MainJob:
    """A finished run that was stopped and killed before, and what its processes said."""

    folder: Path
    run: Path
    arguments: list[str]
    steps: int
    ports: dict[str, list[list[str]]]
    stopped: tuple[int | None, str]
    seconds: float
    """Seconds of `rl` until the stop."""
    status: str
    """The status in the tracker after the stop."""
    resumed: str
    """The output of the process that was killed."""

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=f"sqlite:///{self.folder}/mlflow.db")


def settings_of(teacher: Path) -> list[str]:
    return [
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


def finished_job(found: Runs, own: Path) -> MainJob:
    """Stop a run of two ranks in mid-training, continue with one rank, kill the driver, and let the run finish."""
    arguments = settings_of(tiny_models.qwen3(own / "teacher"))  # of another family, with the same tokenizer
    job = found.start("job", *arguments, LAST.format(kind="adamw", steps=4), f"rl.steps={ENDLESS}", *TWO_RANKS)
    job.wait_until(job.reached("rl", 3), "a step of two ranks")
    ports = {
        actor: open_ports(job, actor) for actor in ("ray::TrainerWorker", "ray::RolloutWorker", "VLLM::EngineCore")
    }
    job.process.send_signal(signal.SIGTERM)
    stopped = job.end(), job.output
    steps, seconds = len(rows(job.run, "rl")) + 3, RunDir(job.run).state().seconds["rl"]
    (tracked,) = tracked_runs(MlflowClient(tracking_uri=f"sqlite:///{found.folder}/mlflow.db"))

    arguments += ["rl.optim.learning_rate=1.2e-4", "rl.timeout_s=301", f"rl.steps={steps}"]
    job = found.start("job", *arguments, LAST.format(kind="muon", steps=ENDLESS))
    job.wait_until(job.reached("sft_last", 1), "a step of the last stage")
    job.kill()
    resumed = job.output
    arguments.append(LAST.format(kind="muon", steps=4))
    job = found.start("job", *arguments)
    assert job.end() == 0, job.output
    return MainJob(
        folder=found.folder,
        run=job.run,
        arguments=arguments,
        steps=steps,
        ports=ports,
        stopped=stopped,
        seconds=seconds,
        status=tracked.info.status,
        resumed=resumed,
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainJob]:
    """The job with the documents' own environment, one that pays every answer and one that pays half of them."""
    own = tmp_path_factory.mktemp("own")
    assert JUDGED in block("python")
    for name, judged in (
        ("backwards", JUDGED),
        ("pleased", "binary_score(True"),
        ("torn", "binary_score(len(parsed.answer) % 2 == 0"),
    ):
        (own / f"{name}.py").write_text(block("python").replace("backwards", name).replace(JUDGED, judged))
    with pytest.MonkeyPatch.context() as patch, runs(DEMO) as found:
        patch.setenv("PYTHONPATH", str(own), prepend=os.pathsep)
        patch.syspath_prepend(own)
        yield finished_job(found, own)


pytestmark = pytest.mark.timeout(4000)


def test_only_processes_of_ray_listen_beyond_loopback(job: MainJob) -> None:
    counts = {actor: [len(one) for one in ports] for actor, ports in job.ports.items()}
    expected = {"ray::TrainerWorker": [1, 1], "ray::RolloutWorker": [1], "VLLM::EngineCore": [0]}
    assert counts == expected, job.ports  # Ray's own ports ask for a token


def test_a_stopped_run_says_so_and_keeps_noise_in_its_logs(job: MainJob) -> None:
    status, output = job.stopped
    assert (status, job.status) == (130, "KILLED"), output
    assert "resume" in output
    assert "Writing model shards" in (job.run / "logs" / "driver.log").read_text()
    assert "Writing model shards" not in output
    printed = [file.read_text(errors="replace") for file in (job.run / "logs" / "ray").glob("worker-*")]
    assert [any(who in text for text in printed) for who in ("TrainerWorker", "RolloutWorker")] == [True, True]


def test_a_resumed_run_has_each_step_of_each_stage_once(job: MainJob) -> None:
    assert "rl: resuming after step" in job.resumed
    assert "sandbox level " in job.resumed
    wanted = {"rl": job.steps, "sft": 4, "rft": 2, "distill": 2, "dpo": 3, "sft_last": 4}
    for stage, steps in wanted.items():  # `sft_last` is `sft` again, under a name of its own
        assert [row.step for row in rows(job.run, stage)] == list(range(1, steps + 1)), stage
    reached = RunDir(job.run).state()
    assert reached.model == "checkpoints/sft_last/000004"
    assert reached.seconds["rl"] > job.seconds > 0  # both starts count
    assert reached.commits == list(filter(None, [source_commit()]))


def test_engines_and_learner_agree_and_no_group_exceeds_its_lag(job: MainJob) -> None:
    measured = rows(job.run, "rl")
    assert all(row.values["train/mismatch_abs"] < 1e-4 for row in measured if not row.values["train/lag_max"])
    assert all(row.values["train/lag_max"] <= 1 for row in measured)
    assert any("env/spelling/reward" in row.values for row in measured)  # the user's own environment


def test_the_report_has_accuracies_changes_and_left_out_rows(job: MainJob) -> None:
    report = json.loads((job.run / "report.json").read_text())
    assert set(report["accuracy"]) == {"math", "code", "tool_use", "spelling", "easy", "coin"}
    data = {event["stage"]: event["what"] for event in report["events"] if event["kind"] == "data"}
    (changed,) = (event for event in report["events"] if (event["kind"], event["stage"]) == ("changed", "rl"))
    assert "rl.optim.learning_rate" in changed["what"]
    assert "rl.timeout_s" not in changed["what"]  # the deadline is free
    missing = sum(row.values["data/filtered"] for row in rows(job.run, "sft"))
    assert 0 < missing < 4 * 16  # demonstrations of more than 64 tokens: counted, not cut
    assert data["sft"] == {"sequences": str(4 * 16), "too long and filtered": f"{missing:.0f}"}
    assert f"sft: {missing:.0f} of 64 sequences" in job.stopped[1]
    assert {"source", "rows", "epochs"} <= data["rft"].keys() & data["dpo"].keys()
    page = (job.run / "report.html").read_text()
    assert "<svg" in page or "data:image" in page


def test_distillation_measures_the_divergence_from_its_teacher(job: MainJob) -> None:
    distilled = rows(job.run, "distill")
    assert all(row.values["train/kl"] > 0.1 for row in distilled)  # from a teacher that knows nothing
    assert all(row.values["train/kl"] == pytest.approx(row.values["train/loss"], rel=0.2) for row in distilled)
    assert all(row.values["rollout/answers"] == 8 for row in distilled)
    assert any("/reward" in name for name in distilled[0].values)


def test_preferences_begin_at_the_reference_and_move(job: MainJob) -> None:
    preferred = rows(job.run, "dpo")
    assert preferred[0].values["train/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert preferred[0].values["train/margin"] == pytest.approx(0.0, abs=1e-6)
    assert all(0 <= row.values["train/accuracy"] <= 1 and row.values["train/grad_norm"] > 0 for row in preferred)
    assert preferred[-1].values["train/margin"] != 0.0


def test_a_checkpoint_is_a_model_of_transformers(job: MainJob) -> None:
    trained = job.run / "checkpoints" / "rl" / f"{job.steps:06}"
    assert AutoModelForCausalLM.from_pretrained(trained).config.model_type == "nemotron_h"
    assert (trained / "tokenizer.json").is_file()  # the one it continued from is gone


def test_recorded_turns_have_their_budgets_and_injected_tokens(job: MainJob) -> None:
    answers = trajectories(job.run)
    sampled = [turn for t in answers for turn in t["turns"]]
    assert sampled
    assert all(len(t["sampled_ids"]) == len(t["logprobs"]) == len(t["versions"]) for t in sampled)
    limited = [(t["thinking"]["budget"], turn) for t in answers if t["thinking"]["budget"] for turn in t["turns"]]
    assert {turn["closed"] for _, turn in limited} <= {"itself", "line_end", "abrupt", "never"}
    within = [len(turn["sampled_ids"]) <= budget + 1 for budget, turn in limited if turn["closed"] == "never"]
    assert all(within)  # the model ended its turn before its budget did
    assert any(any(turn["injected"]) for _, turn in limited)
    assert all([p is None for p in turn["logprobs"]] == turn["injected"] for turn in sampled)


def test_forced_answers_share_the_thought_of_their_answer(job: MainJob) -> None:
    forced = [(t, one) for t in trajectories(job.run) for one in t["forced_answers"]]
    assert forced
    for t, one in forced:
        (whole,), turn, budget = t["turns"], one["turns"][0], one["thinking"]["budget"]
        start = turn["injected"].index(True) if any(turn["injected"]) else len(whole["sampled_ids"])
        assert start in (budget, len(whole["sampled_ids"]))  # the forced end, or the limit of the unlimited answer
        assert turn["sampled_ids"][:start] == whole["sampled_ids"][:start]
        assert (one["reward"] is None) == (one["failure"] is not None)


def test_the_tracker_has_each_step_once_and_no_answers(job: MainJob) -> None:
    (tracked,) = tracked_runs(job.client)
    assert tracked.info.status == "FINISHED"
    history = Counter(m.step for m in job.client.get_metric_history(tracked.info.run_id, "4_train/rl/loss"))
    assert history == Counter(range(1, job.steps + 1))
    kept = {file.path for file in job.client.list_artifacts(tracked.info.run_id)}
    assert kept >= {"report.html", "report.json"}
    assert not [path for path in kept if path.endswith(".jsonl")]  # prompts and answers stay here


def test_every_metric_is_explained(job: MainJob) -> None:
    assert unexplained_of(job.run / "metrics.jsonl") == []  # docs/metrics.md has every name


def test_a_finished_run_runs_nothing_again(job: MainJob) -> None:
    before = [(job.run / name).read_text() for name in ("metrics.jsonl", "manifest.json")]
    assert main(["run", str(DEMO), f"runs_dir={job.folder}", "name=job", *job.arguments]) == 0
    assert [(job.run / name).read_text() for name in ("metrics.jsonl", "manifest.json")] == before
