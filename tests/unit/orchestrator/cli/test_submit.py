"""Submitting to a Ray cluster: a real local head, with jobs that end well, badly, and by a signal."""

import asyncio
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from temper.orchestrator.cli.submit import named_server, passed_on, run_command, run_job, stop_wait_s
from temper.orchestrator.cluster import ray_jobs
from temper.orchestrator.cluster.module_search import FOLDER
from temper.orchestrator.cluster.ray_jobs import Job, JobServer, end_session, local_head
from temper.orchestrator.cluster.this_machine import LOOPBACK, ROOT
from temper.orchestrator.pipeline.config import unsettled_config

STOPPABLE = """
import signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("begun", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[JobServer]:
    with local_head() as running:
        yield running


def test_a_job_streams_its_log_and_returns_its_exit_status(server: JobServer, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "result").write_text("stays here")
    (tmp_path / "data").write_text("travels")
    program = "import os, sys; print('files', sorted(os.listdir())); print('it ' + 'ran'); sys.exit(3)"
    log: list[str] = []
    status = run_job(server, [sys.executable, "-c", program], write=log.append, working_dir=tmp_path)
    assert status == 3
    assert "files ['data']\nit ran\n" in "".join(log)
    assert "".join(log).count("it ran\n") == 1


def test_a_signal_stops_the_job_and_lets_it_save(server: JobServer, tmp_path: Path) -> None:
    log: list[str] = []

    def write(text: str) -> None:
        begun = "begun\n" in "".join(log)
        log.append(text)
        if not begun and "begun\n" in "".join(log):
            signal.raise_signal(signal.SIGTERM)

    assert run_job(server, [sys.executable, "-c", STOPPABLE], write=write, working_dir=tmp_path) == 130
    assert "saved" in "".join(log)
    assert "".join(log).count("begun\n") == 1


@pytest.mark.parametrize(("stop_s", "saves"), [(1, False), (60, True)])
def test_a_stopped_job_has_the_time_that_its_caller_names(
    stop_s: int, saves: bool, server: JobServer, tmp_path: Path
) -> None:
    """The job needs 4 s for its last step."""
    program = STOPPABLE.replace('    print("saved"', '    time.sleep(4)\n    print("saved"')
    log: list[str] = []
    job = Job.submit(
        server,
        shlex.join([sys.executable, "-c", program]),
        working_dir=tmp_path,
        excludes=[],
        env_vars={},
        write=log.append,
        stop_s=stop_s,
    )
    deadline = time.monotonic() + 60
    while "begun" not in server.connect().get_job_logs(job.id).splitlines():  # the log has the program too
        assert time.monotonic() < deadline
        time.sleep(0.1)
    job.stop()
    job.wait()
    assert ("saved" in "".join(log).splitlines()) is saves


def test_a_stop_may_take_as_long_as_the_runs_own_deadlines_allow() -> None:
    given = ["rl.timeout_s=400", "deadlines.files_s=100", "deadlines.megabytes_per_s=50", "runs_dir=/shared/runs"]
    config = unsettled_config(ROOT / "configs" / "demo.yaml", given)
    step_and_push, two_deliveries, shift = 2 * 400, 2 * 120, 120
    two_checkpoints, end = 2 * (100 + 5000 / 50), 120
    assert stop_wait_s(config, 5 * 10**9, 0) == step_and_push + two_deliveries + shift + two_checkpoints + end
    supervised = unsettled_config(ROOT / "configs" / "demo.yaml", [*given, "stages=[init,sft]"])
    assert stop_wait_s(supervised, 5 * 10**9, 0) == 600 + two_checkpoints + end


SUBMITTED = """
import shlex, sys
from pathlib import Path
from temper.orchestrator.cluster.ray_jobs import Job, local_head
command = shlex.join([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"])
with local_head() as server:
    write = lambda text: print(text, flush=True)
    given = {"working_dir": Path(sys.argv[1]), "excludes": [], "env_vars": {}, "write": write}
    Job.submit(server, command, **given).follow()
"""


def test_a_killed_submit_leaves_no_process(tmp_path: Path) -> None:
    """Neither its head with the processes of that, nor the job."""
    with subprocess.Popen(
        [sys.executable, "-c", SUBMITTED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as submit:
        assert submit.stdout is not None
        assert "begun\n" in submit.stdout
        family = psutil.Process(submit.pid).children(recursive=True)
        submit.kill()
    assert len(family) > 5
    _, alive = psutil.wait_procs(family, timeout=120)
    for process in alive:
        process.kill()
    assert alive == []


def test_a_cluster_that_was_started_here_asks_for_its_token(server: JobServer) -> None:
    with pytest.raises(Exception, match="Authentication required"):
        JobServer(address=server.address).connect().list_jobs()


def test_a_local_run_keeps_its_results_in_the_callers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    command = run_command(ROOT / "configs" / "demo.yaml", ["seed=2"], local=True)
    assert command[:4] == ["env", f"{FOLDER}={tmp_path}", "PYTHONPATH=/mine", f"TEMPER_PYTHON={sys.executable}"]
    assert command[4:8] == ["sh", "requirements/temper", "run", "configs/demo.yaml"]
    assert command[8:] == ["seed=2", f"runs_dir={tmp_path / 'runs'}"]


@pytest.mark.parametrize("recipe", sorted((ROOT / "configs" / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_whose_limits_a_profile_is_to_make_room_for_are_submitted(recipe: Path) -> None:
    assert str(recipe.relative_to(ROOT)) in run_command(recipe, ["runs_dir=/shared/runs"], local=False)
    with pytest.raises(ValueError, match="total_tokens=99999999 is more than the engine takes"):
        run_command(recipe, ["rollout.limits.total_tokens=99999999", "rollout.engine.max_model_len=8"], local=False)


def test_files_that_settings_name_are_found_from_the_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("")
    given = ["envs.math.data.path=rows.jsonl", "runs_dir=/shared/runs"]
    command = run_command(ROOT / "configs" / "demo.yaml", given, local=True)
    assert command[-2:] == [f"envs.math.data.path={tmp_path / 'rows.jsonl'}", "runs_dir=/shared/runs"]
    with pytest.raises(ValueError, match=r"envs\.math\.data\.path=rows\.jsonl would not travel"):
        run_command(ROOT / "configs" / "demo.yaml", given, local=False)
    monkeypatch.chdir(ROOT)
    given[0] = "envs.math.data.path=configs/demo.yaml"
    assert run_command(ROOT / "configs" / "demo.yaml", given, local=False)[-2:] == [given[0], given[1]]
    monkeypatch.chdir(ROOT / "configs")  # the job runs in the copy of the folder above
    given[0] = "envs.math.data.path=demo.yaml"
    command = run_command(Path("demo.yaml"), given, local=False)
    assert command[3:] == ["run", "configs/demo.yaml", *given, "envs.math.data.path=configs/demo.yaml", given[1]]
    monkeypatch.chdir(ROOT)
    given[0] = "envs.math.data.path=runs/rows.jsonl"
    with pytest.raises(ValueError, match="without runs/"):
        run_command(ROOT / "configs" / "demo.yaml", given, local=False)


def test_stores_of_trackers_outlive_the_jobs_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///all.db")
    given = ["tracking.also=[trackio]", "tracking.trackio.dir=stores", "runs_dir=/shared/runs"]
    demo = ROOT / "configs" / "demo.yaml"
    stores = [f"tracking.uri=sqlite:///{tmp_path}/all.db", f"tracking.trackio.dir={tmp_path}/stores"]
    assert run_command(demo, given, local=True)[-3:] == [*stores, given[-1]]
    with pytest.raises(ValueError, match=r"tracking\.uri and tracking\.trackio\.dir, or a variable"):
        run_command(demo, given, local=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    given[1] = "tracking.trackio.dir=/shared/stores"
    assert run_command(demo, given, local=False)[-1:] == given[-1:]
    assert run_command(demo, given, local=True)[-4:] == [*given, given[-1]]


def test_a_job_that_does_not_end_when_it_is_told_to_is_waited_for_no_longer(server: JobServer, tmp_path: Path) -> None:
    program = shlex.join([sys.executable, "-c", "import time; time.sleep(60)"])
    job = Job.submit(server, program, working_dir=tmp_path, excludes=[], env_vars={}, write=lambda text: None)
    with pytest.raises(TimeoutError, match=f"job {job.id} is still .* 0 s after it was told to stop"):
        job.wait(limit_s=0.0)
    job.stop()
    assert job.wait() != 0


def test_a_silent_log_is_left_for_the_jobs_status(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = JobSubmissionClient.tail_job_logs

    async def silent(client: JobSubmissionClient, job: str) -> AsyncIterator[str]:
        async for text in whole(client, job):
            yield text
            await asyncio.sleep(1000)

    monkeypatch.setattr(ray_jobs, "SILENT_S", 1.0)
    monkeypatch.setattr(JobSubmissionClient, "tail_job_logs", silent)
    log: list[str] = []
    program = "import time; print('begun', flush=True); time.sleep(4); print('done')"
    assert run_job(server, [sys.executable, "-c", program], write=log.append, working_dir=tmp_path) == 0
    assert "".join(log).splitlines()[-2:] == ["begun", "done"]
    assert "".join(log).count("begun\n") == 1


@pytest.mark.parametrize("silences", [2, ray_jobs.UNANSWERED])
def test_a_job_is_followed_on_where_its_server_was_slow(silences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, log = list[str](), list[str]()

    class Server:
        def get_job_info(self, job: str) -> SimpleNamespace:
            asked.append(job)
            if len(asked) <= silences:
                raise TimeoutError("the job server did not answer")
            return SimpleNamespace(status=JobStatus.SUCCEEDED)

        async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
            for text in ("said\n",):
                yield text

    monkeypatch.setattr(JobServer, "connect", lambda _: Server())
    job = Job(JobServer(address="http://127.0.0.1:1"), "job-7", write=log.append)
    if silences < ray_jobs.UNANSWERED:
        job.follow()
        assert asked == ["job-7"] * 3
    else:
        with pytest.raises(TimeoutError, match="5 times in a row; `ray job status job-7`"):
            job.follow()


def test_a_job_server_that_is_silent_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "ANSWER_S", 0.3)
    with socket.create_server((LOOPBACK, 0)) as listening:  # takes connections, and answers nothing
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=f"the job server at {address} did not answer in 0 s"):
            JobServer(address=address).connect()


def test_files_of_settings_are_found_from_the_jobs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("over.yaml").write_text("seed: 7")
    given = ["over.yaml", "runs_dir=/shared/runs"]
    assert run_command(ROOT / "configs" / "demo.yaml", given, local=True)[8:10] == [
        "configs/demo.yaml",
        str(tmp_path / "over.yaml"),
    ]
    with pytest.raises(ValueError, match=r"over\.yaml lies outside"):
        run_command(ROOT / "configs" / "demo.yaml", given, local=False)


def test_a_module_of_ones_own_that_would_not_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "travelling_env.py").write_text(
        "from temper.envs.core.definition import EnvDefinition\n"
        "ENVIRONMENT = EnvDefinition(id='travelling_env', entry_point='travelling_env:Env')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = ["envs={travelling_env: {}}", "runs_dir=/shared/runs", "stages=[init]"]
    with pytest.raises(ValueError, match=r"travelling_env.*would not travel.*cluster's environment"):
        run_command(ROOT / "configs" / "demo.yaml", given, local=False)


def test_variables_travel_by_pattern_and_by_what_the_settings_read() -> None:
    here = {"HF_TOKEN": "a", "NCCL_DEBUG": "b", "MLFLOW_TRACKING_URI": "c", "SHOP_KEY": "d", "VLLM_API_KEY": "e"}
    here |= {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "OTHER_KEY": "f"}
    found = passed_on(here, ["envs: {shop: {options: {api_key: '${oc.env:SHOP_KEY}'}}}", "seed=${oc.env:SEED,1}"])
    assert found == {"HF_TOKEN": "a", "NCCL_DEBUG": "b", "MLFLOW_TRACKING_URI": "c", "SHOP_KEY": "d"}


def test_a_job_has_the_variables_that_travel(server: JobServer, tmp_path: Path) -> None:
    log: list[str] = []
    program = "import os; print('token', os.environ['HF_TOKEN'])"
    command = [sys.executable, "-c", program]
    env_vars = {"HF_TOKEN": "travelled"}
    assert run_job(server, command, write=log.append, working_dir=tmp_path, env_vars=env_vars) == 0
    assert "token travelled\n" in "".join(log)


def test_what_another_machine_could_not_find_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "mine.yaml"
    outside.write_text((ROOT / "configs" / "demo.yaml").read_text())
    with pytest.raises(ValueError, match="runs_dir=runs must be absolute"):
        run_command(ROOT / "configs" / "demo.yaml", [], local=False)
    with pytest.raises(ValueError, match="would not travel"):
        run_command(outside, ["runs_dir=/shared/runs"], local=False)


def test_an_address_that_is_no_job_server_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'127\.0\.0\.1:6379'"):
        named_server("127.0.0.1:6379")


def test_a_process_that_does_not_end_is_killed_with_its_session() -> None:
    script = "trap '' TERM; sleep 100 & echo $!; wait; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        end_session(leader, grace_s=0.3)
        assert leader.returncode == -signal.SIGKILL
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive
