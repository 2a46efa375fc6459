"""Job submission to a real local Ray head: jobs that succeed, fail, or stop on a signal."""

import asyncio
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient
from support.ray_head import local_head

from temper.orchestrator.cli import submit as command
from temper.orchestrator.cli.submit import passed_on, remote_command, run_job, submit
from temper.orchestrator.cluster import ray_jobs
from temper.orchestrator.cluster.ray_jobs import Job
from temper.orchestrator.cluster.this_machine import LOOPBACK, PACKAGE, worker_variables

DEMO = PACKAGE / "configs" / "demo.yaml"
SHARED = "runs_dir=/shared/runs"
STOPPABLE = """
import signal, sys, time
def stop(*_):
    time.sleep(4)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("begun", flush=True)
time.sleep(60)
"""


IMPORTED = """
import os, sys
from pathlib import Path
from temper.orchestrator.cluster.this_machine import PACKAGE, module_folder, search_last
search_last(module_folder())
import rewards.mine
there = os.listdir(PACKAGE)
print("package has", sorted({"configs", "requirements"} & {*there}), "tests" if "tests" in there else "and not tests")
print(rewards.mine.__file__)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("PYTHONPATH", worker_variables()["PYTHONPATH"])
        with local_head() as address:
            yield address


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(command, "_write", found.append)
    return found


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def test_a_job_streams_its_log_and_returns_its_exit_status(server: str, tmp_path: Path, log: list[str]) -> None:
    for folder in ("runs", ".types"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "result").write_text("stays here")
    (tmp_path / ".types" / "temper").symlink_to("..")
    (tmp_path / "data").write_text("travels")
    program = (
        "import os, sys; print('files', sorted(os.listdir()), os.environ['HF_HOME']); print('it ' + 'ran'); sys.exit(3)"
    )
    env = {"working_dir": str(tmp_path), "excludes": command.EXCLUDES, "env_vars": {"HF_HOME": "hub"}}
    assert run_job(server, python(program), env) == 3
    assert "files ['data'] hub\nit ran\n" in "".join(log)
    assert "".join(log).count("it ran\n") == 1


@pytest.mark.parametrize(("stop_s", "saves"), [(1, False), (60, True)])
def test_a_signal_stops_a_job_which_may_save(
    stop_s: int, saves: bool, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of the job takes 4 s."""
    log: list[str] = []

    def write(text: str) -> None:
        begun = "begun" in "".join(log).splitlines()
        log.append(text)
        if not begun and "begun" in "".join(log).splitlines():
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(command, "_write", write)
    monkeypatch.setattr(command, "STOP_S", stop_s)
    assert run_job(server, python(STOPPABLE), {}) == 130
    assert ("saved" in "".join(log).splitlines()) is saves
    assert "".join(log).splitlines().count("begun") == 1


def test_a_job_that_does_not_end_is_waited_for_no_longer(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "SILENT_S", 0.1)
    job = Job(server, python("import time; time.sleep(60)"), runtime_env={}, write=lambda text: None)
    with pytest.raises(TimeoutError, match=job.id):
        job.follow(limit_s=0.0)
    job.stop()
    assert job.follow(limit_s=60.0) != 0


def test_a_silent_log_is_left_for_the_jobs_status(server: str, log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = JobSubmissionClient.tail_job_logs

    async def silent(client: JobSubmissionClient, job: str) -> AsyncIterator[str]:
        async for text in whole(client, job):
            yield text
            await asyncio.sleep(1000)

    monkeypatch.setattr(ray_jobs, "SILENT_S", 1.0)
    monkeypatch.setattr(JobSubmissionClient, "tail_job_logs", silent)
    program = "import time; print('begun', flush=True); time.sleep(4); print('done')"
    assert run_job(server, python(program), {}) == 0
    lines = "".join(log).splitlines()  # Ray writes its own lines at any time
    assert (lines.count("begun"), lines.count("done"), lines[-1]) == (1, 1, "done")


def test_a_job_has_the_package_and_the_modules_of_the_folder(
    server: str, tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rewards").mkdir()
    Path("rewards/mine.py").write_text("")
    monkeypatch.setattr(command, "COMMAND", [sys.executable, "-P", "-c", IMPORTED])
    assert submit(DEMO, [SHARED], server) == 0
    found = "".join(log)
    assert "package has ['configs', 'requirements'] and not tests" in found
    assert "rewards/mine.py" in found


@pytest.mark.parametrize("silences", [2, ray_jobs.MAX_UNANSWERED])
def test_a_slow_server_is_asked_again(silences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    class Server:
        def submit_job(self, *, entrypoint: str, runtime_env: object) -> str:
            return "job-7"

        def get_job_info(self, job: str) -> SimpleNamespace:
            asked.append(job)
            if len(asked) <= silences:
                raise TimeoutError("no answer")
            return SimpleNamespace(status=JobStatus.SUCCEEDED)

        def get_job_logs(self, _: str) -> str:
            return "said\n"

        async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
            yield "said\n"

    monkeypatch.setattr(ray_jobs, "_client", lambda address: Server())
    job = Job("http://127.0.0.1:1", "true", runtime_env={}, write=lambda text: None)
    if silences < ray_jobs.MAX_UNANSWERED:
        assert job.follow() == 0
        assert len(asked) == silences + 1
    else:
        with pytest.raises(TimeoutError):
            job.follow()


def test_a_silent_job_server_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "ANSWER_S", 0.3)
    with socket.create_server((LOOPBACK, 0)) as listening, pytest.raises(OSError, match="timed out"):
        Job(f"http://{LOOPBACK}:{listening.getsockname()[1]}", "true", runtime_env={}, write=lambda text: None)


@pytest.mark.parametrize("recipe", sorted((PACKAGE / "configs" / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_submitted(recipe: Path) -> None:
    assert str(recipe.relative_to(PACKAGE)) in remote_command(recipe, [SHARED])
    with pytest.raises(ValueError, match="total_tokens=99999999"):
        remote_command(recipe, ["rollout.limits.total_tokens=99999999", "rollout.engine.max_model_len=8"])


def test_files_are_named_by_their_place_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the folder keeps its relative path. A file of the package keeps its name in the package."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/over.yaml").write_text("seed: 7")
    Path("mine/rows.jsonl").write_text("{}")
    others = ["envs.math.data.path=mine/../mine/rows.jsonl", SHARED, "tracking.uri=http://tracker:5000"]
    made = remote_command(Path("configs/demo.yaml"), [str(tmp_path / "mine/over.yaml"), *others])
    assert made[-6:] == ["configs/demo.yaml", "mine/over.yaml", *others, "envs.math.data.path=mine/rows.jsonl"]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ([], "runs_dir=runs"),
        (["../over.yaml", SHARED], "over.yaml"),
        (["envs.math.data.path=../rows.jsonl", SHARED], "envs.math.data.path="),
        (["envs.math.data.path=runs/rows.jsonl", SHARED], "envs.math.data.path="),
        (["tracking.uri=sqlite:///all.db", SHARED], "tracking.uri"),
    ],
)
def test_files_that_another_machine_would_not_have_are_refused(
    given: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("../over.yaml").write_text("seed: 7")
    with pytest.raises(ValueError, match=key):
        remote_command(DEMO, given)


def test_variables_travel_by_pattern_and_by_what_the_settings_read() -> None:
    here = {"HF_TOKEN": "a", "NCCL_DEBUG": "b", "MLFLOW_TRACKING_URI": "c", "SHOP_KEY": "d", "VLLM_API_KEY": "e"}
    here |= {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "OTHER_KEY": "f"}
    found = passed_on(here, ["envs: {shop: {options: {api_key: '${oc.env:SHOP_KEY}'}}}", "seed=${oc.env:SEED,1}"])
    assert found == {"HF_TOKEN": "a", "NCCL_DEBUG": "b", "MLFLOW_TRACKING_URI": "c", "SHOP_KEY": "d"}


def test_secrets_that_travel_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run_job", lambda *_: 0)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:word@tracker")
    given = "envs.math.options.system=Bearer abcdef1234567"
    assert submit(DEMO, [SHARED, given], "http://127.0.0.1:1") == 0
    said = capsys.readouterr().err
    assert "HF_TOKEN, " in said
    assert "envs.math.options.system" in said
    assert "abcdef" not in said
    assert command._written_secrets(DEMO, ["envs.shop.options.api_key=${oc.env:HF_TOKEN}"]) == []
    assert "MLFLOW_TRACKING_URI" in said
    assert "hf_secret" not in said


def test_an_address_that_is_no_job_server_is_refused() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:6379"):
        submit(DEMO, [SHARED], "127.0.0.1:6379")
