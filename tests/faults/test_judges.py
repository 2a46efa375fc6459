"""A run serves its own judge: with a key on loopback, again after its death, and not beyond the end of the driver."""

from collections.abc import Iterator

import httpx
import psutil
import pytest
from support import tiny_models
from support.fault_job import Job, Runs, rows, runs, title
from support.fault_report import saw
from support.healing import audited, faults, steps_done

SERVER = "temper.orchestrator serve"
STEPS = 8


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs() as made:
        yield made


def server_of(job: Job) -> psutil.Process | None:
    return next((one for one in job.tree() if SERVER in title(one)), None)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_run_serves_its_judge_and_restarts_and_ends_it(found: Runs) -> None:
    model = tiny_models.answering(found.folder / "judge", '{"reasoning":"","score":5}')
    pace = found.folder / "pace"
    pace.write_text("0.5", encoding="ascii")
    settings = (
        *(f"envs.coin.judge={{model: {model}, max_tokens: 32, retries: 12}}", "stages=[init,rl]", f"rl.steps={STEPS}"),
        *(f"envs.coin.options={{pace: {pace}}}", "rl.timeout_s=1800", "deadlines.start_s=1800"),
    )
    job = found.start("job", *settings)
    job.wait_until(lambda: steps_done(job) >= 2, "two judged steps", every_s=0.5)
    server = server_of(job)
    assert server is not None
    (listens,) = {one.laddr for one in server.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    assert listens.ip == "127.0.0.1"
    assert httpx.get(f"http://127.0.0.1:{listens.port}/v1/models").status_code == 401
    server.kill()
    job.wait_until(job.said("answers again"), "its restart", every_s=0.5)
    done = steps_done(job)
    job.wait_until(lambda: steps_done(job) >= done + 2, "two steps after it", every_s=0.5)
    (fault,) = faults(job)
    assert fault.event is not None
    assert str(model) in str(fault.event)
    job.kill()  # no server is left
    again = found.start("job", *settings)
    assert again.end() == 0, again.output
    measured = rows(job.run, "rl")
    assert all(0 < row.values["env/coin/parts/judge"] <= 0.5 for row in measured)
    saw("judge-killed", f"restarted, {done} steps before; {len(measured)} steps, audit: {audited(job.run)}")
