"""A run over four hosts with a slow and lossy network survives the loss of an engine, a rank and the network.

Hosts 0 to 2 are a cluster with two ranks and two engines, host 3 has the environment server. `make test-network` writes
the page docs/network.md.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from network import coin_server, echo
from support.event_rows import read_event_log
from support.fault_job import Job, rows, runs
from support.healing import ENGINE, audited, steps_done
from support.hosts import Hosts, NoHostsError, hosts

from temper.orchestrator.session.status import ProcessStatus, read_status

DELAY_S, LOSS, APART_S = 0.02, 0.01, 30.0
SERVER, SERVER_PORT = 3, 9100
STEPS, SLOW_S = 80, 4.0
"""The steps of the run, and the seconds of a verdict until all faults are over, so that the run does not end earlier."""
HEALED_S = 300.0
RANK, WORKER = "the learner", "rollout"
QUESTIONS = 64
PAGE = "TEMPER_NETWORK_PAGE"
HEAD = f"""# A bad network

Look up how a run behaves if the network between its hosts is bad. `make test-network` measures it and writes this page. It
needs root and network namespaces.

The hosts are four network namespaces of one machine ({os.cpu_count()} CPU cores, shared). Three of them are a Ray
cluster with two learner ranks and two vLLM engines, and the fourth has the environment server. A switch in user space
delays each frame by {1000 * DELAY_S:.0f} ms each way and loses {LOSS:.0%} of the frames, so all faults meet the same bad
network. They happen to one run of {STEPS} RL steps.

| fault | outcome | until two more steps |
|---|---|---|
"""


class Run:
    """The run, and the outcomes seen so far."""

    def __init__(self, job: Job, network: Hosts) -> None:
        self.job, self.network = job, network
        self.seen: list[tuple[str, str, float]] = []

    def saw(self, fault: str, outcome: str, seconds: float) -> None:
        self.seen.append((fault, outcome, seconds))
        print(f"{fault}: {outcome}, two steps after {seconds:.0f} s", flush=True)

    def serving(self, name: str) -> dict[int, ProcessStatus]:
        """Return the processes of this name that serve, by their number."""
        status = read_status(self.job.run)
        found = status.processes if status else ()
        return {one.pid: one for one in found if one.name.startswith(name) and one.state == "serving" and one.pid}

    def wait(self, seen: Callable[[], bool], what: str) -> float:
        """Wait until something is seen. Return the seconds."""
        began = time.monotonic()
        self.job.wait_until(seen, what, limit_s=HEALED_S, every_s=0.1)
        return time.monotonic() - began

    def is_replaced(self, name: str, before: set[int]) -> bool:
        """Return whether two processes of this name serve, not the two from before. It reads the status once."""
        now = set(self.serving(name))
        return len(now) == 2 and now != before

    def both(self) -> bool:
        return len(self.serving(RANK)) == len(self.serving(WORKER)) == 2

    def busiest(self) -> int:
        """Return a host, not the head, with a rank and an engine, else one with either of them."""
        working = {*self.serving(RANK), *self.serving(WORKER)}
        return max(range(1, SERVER), key=lambda host: len(working.intersection(self.network.pids(host))))

    def steps_on(self, count: int = 2) -> float:
        """Wait for more steps. Return the seconds."""
        done = steps_done(self.job)
        return self.wait(lambda: steps_done(self.job) >= done + count, f"{count} more steps")

    def replaced(self, fault: str, name: str, victim: int) -> None:
        """Kill a process, and wait until another one of this name serves and steps continue."""
        before, done = set(self.serving(name)), steps_done(self.job)
        os.kill(victim, signal.SIGKILL)
        seconds = self.wait(lambda: self.is_replaced(name, before), f"{fault}: a replacement")
        meanwhile = max(0, steps_done(self.job) - done)
        outcome = f"another one serves after {seconds:.0f} s, {meanwhile} steps meanwhile"
        self.saw(fault, outcome, seconds + self.wait(self.both, f"{fault}: all serve") + self.steps_on())


def rows_of_questions(path: Path) -> Path:
    questions = [
        {"responses_create_params": {"input": f"Say something about {number}."}} for number in range(QUESTIONS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in questions), encoding="utf-8")
    return path


@contextmanager
def on_host(network: Hosts, host: int, *command: str) -> Iterator[None]:
    """Run a Python file on a host until the end of the block."""
    with subprocess.Popen([*network.before(host), sys.executable, *command]) as process:
        try:
            yield
        finally:
            process.kill()


def round_trips(network: Hosts, host: int) -> list[float]:
    """Return the seconds of the round trips from another host to this one, without the lost ones."""
    with on_host(network, host, echo.__file__, "serve", network.addresses[host]):
        time.sleep(1)
        asker = 1 if host != 1 else 2
        asked = [*network.before(asker), sys.executable, echo.__file__, "ask", network.addresses[host]]
        took: list[float] = json.loads(subprocess.run(asked, capture_output=True, check=True, timeout=60).stdout)
    return took


def settings(network: Hosts, questions: Path) -> list[str]:
    address = network.addresses[SERVER]
    options = f"{{url: 'http://{address}:{SERVER_PORT}', hosts: ['{address}'], timeout_s: 10}}"
    return [
        f"envs.coin={{kind: nemo_gym, data: {questions}, options: {options}, thinking: false}}",
        "stages=[init,rl]",
        f"rl.steps={STEPS}",
        *("rl.max_lag=1", "learner.ranks=2", "learner.zero_stage=2", "rollout.workers=2"),
        *("supervision.heartbeat_s=0.5", "supervision.restarts=10"),
    ]


def cut_off(run: Run, host: int, fault: str) -> None:
    """Separate a host for `APART_S` seconds, and start its node again if the cluster has given it up."""
    network, done = run.network, steps_done(run.job)
    before = {*run.serving(RANK), *run.serving(WORKER)}
    network.partition(host)
    apart = time.monotonic()
    assert not round_trips(network, host)
    time.sleep(apart + APART_S - time.monotonic())
    meanwhile = steps_done(run.job) - done
    network.partition()
    began = time.monotonic()
    outcome = "no host left the cluster"
    if host != SERVER:
        time.sleep(5)  # Ray ends a node that it declared dead
        here = network.pids(host)
        if not any(one.info["name"] == "raylet" and one.pid in here for one in psutil.process_iter(["name"])):
            network.lose(host)
            network.join(host)
            outcome = "the cluster gives the host up, it joins again"
    run.wait(run.both, f"{fault}: all serve again")
    run.steps_on()
    seconds = time.monotonic() - began
    new = len({*run.serving(RANK), *run.serving(WORKER)} - before)
    run.saw(fault, f"{outcome}; {new} ranks and engines replaced, {meanwhile} steps meanwhile", seconds)


@pytest.mark.network
@pytest.mark.timeout(1800)
def test_a_run_on_a_bad_network_heals() -> None:
    with runs() as found:
        pace = found.folder / "pace"
        pace.write_text(str(SLOW_S), encoding="ascii")
        try:
            with hosts(4, nodes=SERVER, delay_s=DELAY_S, loss=LOSS) as network:
                took = round_trips(network, SERVER)
                round_trip_s, lost = statistics.median(took), 1 - len(took) / echo.PACKETS
                assert 2 * DELAY_S <= round_trip_s < 4 * DELAY_S
                assert 0 < lost < 5 * LOSS
                address = network.addresses[SERVER]
                questions = rows_of_questions(found.folder / "questions.jsonl")
                with on_host(network, SERVER, coin_server.__file__, address, str(SERVER_PORT), str(pace)):
                    job = found.start(
                        "job",
                        *settings(network, questions),
                        before=network.before(),
                        environment=network.environment,
                    )
                    run = Run(job, network)
                    started = run.wait(lambda: steps_done(job) >= 2 and run.both(), "two steps")
                    run.saw("none", "the run starts", started)
                    worker = psutil.Process(max(run.serving(WORKER)))
                    (engine,) = [one.pid for one in worker.children(recursive=True) if one.name() == ENGINE]
                    run.replaced("kill -9 of an engine", WORKER, engine)
                    run.replaced("kill -9 of a learner rank", RANK, max(run.serving(RANK)))
                    cut_off(run, SERVER, f"the environment server cut off for {APART_S:.0f} s")
                    cut_off(run, run.busiest(), f"a host with a rank and an engine cut off for {APART_S:.0f} s")
                    pace.write_text("0", encoding="ascii")
                    assert job.end() == 0, job.output
                measured, verdict = rows(job.run, "rl"), audited(job.run)
                events = read_event_log(job.run / "event_log.jsonl")
                totals = next(row for row in reversed(events) if row.event == "step").totals
        except NoHostsError as error:
            pytest.skip(str(error))
    assert [row.step for row in measured] == list(range(1, STEPS + 1))
    assert totals.is_balanced
    table = "".join(f"| {fault} | {outcome} | {seconds:.0f} s |\n" for fault, outcome, seconds in run.seen)
    ledger = (
        f"{totals.issued} tickets = {totals.trained} trained + {totals.dropped} dropped + {totals.failed} failed + "
        f"{totals.in_flight} in flight"
    )
    text = f"""{HEAD}{table}
Between two hosts, the median round trip takes {1000 * round_trip_s:.0f} ms, and {lost:.1%} of the echoes are lost. The times
of a partition count from its end.

The run ends with status 0. Its ledger is balanced: {ledger}. The audit of its folder: {verdict}.
"""
    print(text)
    if page := os.environ.get(PAGE):
        Path(page).write_text(text, encoding="utf-8")
