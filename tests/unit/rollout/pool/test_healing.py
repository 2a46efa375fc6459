"""The pool replaces dead workers, driven with plain objects: with which weights, and until which limit."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.in_loop import in_loop
from support.plain_pool import TASK, TICKET, Worker, pool_of, settle
from support.pushes import empty_push

from temper.envs.core.process import LearnerDied, WorkerDied
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.restarts import RestartLimit, TooManyRestarts
from temper.rollout.trajectory import FailureKind, Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.transports import Receivers

ONE, TWO = WeightVersion(step=1), WeightVersion(step=2)


def states(pool: RolloutPool) -> list[tuple[str, int]]:
    return [(slot.state, slot.restarts) for slot in pool.processes()]


async def restarted(pool: RolloutPool, times: int, *, place: int = 0) -> list[tuple[str, int]]:
    """Wait until a worker serves after that many restarts. Return the states of all."""
    while states(pool)[place] != ("serving", times):
        await asyncio.sleep(0.01)
    return states(pool)


async def push(pool: RolloutPool, version: int) -> WeightVersion:
    return await pool.load_weights(empty_push(version, nbytes=64))


@in_loop
async def test_a_dead_workers_group_keeps_its_seeds() -> None:
    reissued: list[tuple[int, str]] = []
    first, other = Worker(held=True), Worker()
    pool = await pool_of([first, other], new_workers=[Worker(unplaced=True)])
    pool.on_reissue = lambda number, why: reissued.append((number, why))
    answering = asyncio.create_task(pool.run_group(TICKET, 4))
    await settle()
    before = states(pool)
    first.kill()
    group = await answering
    after = states(pool)
    assert (first.calls, other.calls) == ([(4, 0)], [(4, 0)])  # the attempt is the same, and so are the seeds
    assert (group.ticket, len(group.trajectories), group.retried) == (TICKET, 4, ())
    assert reissued == [(TICKET.number, "worker_died")]
    assert (before, after) == ([("serving", 0), ("serving", 0)], [("starting", 1), ("serving", 0)])


@in_loop
async def test_groups_wait_for_the_only_workers_replacement() -> None:
    said: list[str] = []
    first, second = Worker(name="worker 0", held=True), Worker(name="worker 0")
    pool = await pool_of([first], new_workers=[second], tell=said.append)
    answering = asyncio.create_task(pool.run_group(TICKET, 2))
    await settle()
    first.kill()
    group = await answering
    assert (len(group.trajectories), second.did) == (2, ["start base 0", "group 3"])
    assert said == ["worker 0: worker 0 died", "worker 0 serves version 0 after 0 s"]


@in_loop
async def test_a_start_stops_the_groups_deadline() -> None:
    first, new_worker = Worker(), Worker(unplaced=True)
    pool = await pool_of([first], new_workers=[new_worker])
    healed = [pool.last_restart_at()]
    first.kill()
    await settle()
    for _ in range(2):
        await asyncio.sleep(0.02)
        healed.append(pool.last_restart_at())
    new_worker.room.set()
    await pool.run_group(TICKET, 1)
    for _ in range(2):
        await asyncio.sleep(0.02)
        healed.append(pool.last_restart_at())
    never, starts, later, serves, still = healed
    assert never == 0.0 < starts < later < serves == still


@in_loop
async def test_a_new_worker_reads_the_others_checkpoint() -> None:
    first, new_worker = Worker(), Worker()
    pool = await pool_of([first, Worker()], new_workers=[new_worker])
    new_worker.broken = None
    first.kill()
    for _ in range(4):  # it has started on the weights of that time, or is about to
        await asyncio.sleep(0)
    await pool.load_checkpoint(Path("other"), ONE)
    await settle()
    assert new_worker.did[-1] in ("read other 1", "start other 1")


@in_loop
async def test_a_new_worker_reads_saved_weights_from_disk() -> None:
    first, new_worker = Worker(), Worker()
    pool = await pool_of([first], new_workers=[new_worker])
    await pool.load_weights(empty_push(5, nbytes=64))
    assert pool.model is None
    pool.hold(Path("trained"))
    first.kill()
    await settle()
    assert new_worker.did == ["start trained 5"]
    assert str(pool.model) == "trained"


@in_loop
async def test_workers_that_die_in_a_push_are_replaced() -> None:
    dies, lives, new_worker = Worker(), Worker(), Worker()
    pool = await pool_of([dies, lives], new_workers=[new_worker])
    dies.loads.clear()
    pushing = asyncio.create_task(push(pool, 1))
    await settle()
    dies.kill()
    confirmed = await pushing
    assert (confirmed, await restarted(pool, 1)) == (ONE, [("serving", 1), ("serving", 0)])
    assert (lives.did, new_worker.did) == (["start base 0", "push 1"], ["start newest 1", "push 1"])


@in_loop
async def test_a_push_in_which_all_die_is_what_their_successors_serve() -> None:
    dies, new_worker = Worker(), Worker()
    pool = await pool_of([dies], new_workers=[new_worker])
    dies.loads.clear()
    pushing = asyncio.create_task(push(pool, 1))
    await settle()
    dies.kill()
    confirmed = await pushing
    await pool.run_group(TICKET, 1)
    assert (confirmed, new_worker.did) == (ONE, ["start newest 1", "push 1", "group 3"])


@in_loop
async def test_a_worker_that_fails_a_push_twice_is_replaced() -> None:
    said: list[str] = []
    fails, lives, new_worker = Worker(), Worker(), Worker()
    pool = await pool_of([fails, lives], new_workers=[new_worker], tell=said.append)
    fails.damaged = 2
    confirmed = await push(pool, 1)
    await restarted(pool, 1)
    assert (confirmed, fails.dead.is_set()) == (ONE, True)
    assert (lives.did, new_worker.did) == (["start base 0", "push 1"], ["start newest 1", "push 1"])
    assert "did not take weight version 1, which others took: ValueError: what arrived" in said[0]


@in_loop
async def test_a_push_that_is_damaged_again_is_a_fault() -> None:
    damaged = Worker()
    pool = await pool_of([damaged])
    damaged.damaged = 2
    with pytest.raises(ValueError, match="another checksum"):
        await push(pool, 1)


@in_loop
async def test_an_engine_without_bytes_is_replaced() -> None:
    said: list[str] = []
    fleet, new_worker = [Worker(name=f"{n}") for n in range(4)], Worker()
    pool = await pool_of(fleet, new_workers=[new_worker], push_s=0.2, tell=said.append)
    fleet[1].loads.clear()
    confirmed = await push(pool, 1)
    await restarted(pool, 1, place=1)
    assert confirmed == ONE
    assert [worker.did[1:] for worker in (*fleet, new_worker)] == [["push 1"], [], ["push 1"], ["push 1"], ["push 1"]]
    assert "rollout.engine.push_timeout_s" in said[0]


@in_loop
async def test_a_stuck_new_worker_does_not_delay_a_push() -> None:
    first, healthy, stuck, last = (Worker() for _ in range(4))
    pool = await pool_of([first, healthy], new_workers=[stuck, last], push_s=0.5)
    await push(pool, 1)
    stuck.loads.clear()
    first.kill()
    await settle()
    assert stuck.did == ["start newest 1"]
    pushing = asyncio.create_task(push(pool, 2))
    while healthy.did[-1] != "push 2":
        await asyncio.sleep(0.01)
    waited = stuck.dead.is_set()
    confirmed = await pushing
    await restarted(pool, 2)
    assert not waited  # the healthy one has the push before the other one fails
    assert (stuck.did, confirmed, last.did) == (["start newest 1"], TWO, ["start newest 2", "push 2"])


class DeadSender:
    """A learner that dies after its first delivery."""

    def __init__(self) -> None:
        self.sent = 0

    async def host(self) -> str:
        return "here"

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> Offered:
        return asyncio.get_running_loop().create_future()

    async def send(self, version: int) -> None:
        self.sent += 1
        if self.sent > 1:
            raise LearnerDied("rank 0 died")


@in_loop
async def test_a_new_worker_joins_with_the_next_weights() -> None:
    first, new_worker = Worker(), Worker()
    pool = await pool_of([first, Worker()], new_workers=[new_worker])
    await pool.load_weights(
        Push(manifest=empty_push(1, nbytes=64).manifest, delivery=Delivery(DeadSender(), processes=1))
    )
    first.kill()
    await settle()
    before = states(pool)
    await pool.load_checkpoint(Path("checkpoint"), TWO)
    assert before == [("starting", 1), ("serving", 0)]
    assert states(pool) == [("serving", 1), ("serving", 0)]
    assert new_worker.did[-1] == "read checkpoint 2"


@in_loop
async def test_a_new_worker_gets_each_push_once() -> None:
    first, second, one, other = Worker(), Worker(), Worker(), Worker(unplaced=True)
    pool = await pool_of([first, second, Worker()], new_workers=[one, other])
    await push(pool, 1)
    one.loads.clear()
    first.kill()
    await settle()
    second.kill()
    await settle()
    # the first new worker loads it after its separate load
    pushing = asyncio.create_task(push(pool, 2))
    await settle()
    other.room.set()
    await settle()
    one.loads.set()
    await pushing
    await settle()
    assert (one.did, other.did) == (["start newest 1", "push 1", "push 2"], ["start newest 2", "push 2"])


@in_loop
async def test_a_broadcast_skips_a_joining_worker() -> None:
    first, new_worker = Worker(), Worker()
    pool = await pool_of([first, Worker()], new_workers=[new_worker])
    await pool.load_weights(empty_push(1, nbytes=64, transport="broadcast"))
    new_worker.loads.clear()
    first.kill()
    await settle()
    await pool.load_weights(empty_push(2, nbytes=64, transport="broadcast"))
    before = states(pool)
    new_worker.loads.set()
    await settle()
    assert states(pool) == [("serving", 1), ("serving", 0)]
    assert before == [("starting", 1), ("serving", 0)]
    assert new_worker.did == ["start newest 1", "push 1", "push 2"]


class StartsLate(Worker):
    """A worker that starts after a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        await self.may.wait()
        return await super().start(model_dir, version)


@in_loop
async def test_a_late_start_is_examined_before_replacement() -> None:
    said: list[str] = []
    first, late = Worker(name="0"), StartsLate()
    pool = await pool_of([first, Worker()], new_workers=[late, Worker()], start_s=0.1, tell=said.append)
    first.kill()
    assert await restarted(pool, 2) == [("serving", 2), ("serving", 0)]
    assert said[1:3] == ["w looked at: did not start within 0 s", "w: w did not start within 0 s"]


@in_loop
async def test_a_new_worker_that_never_reads_is_replaced() -> None:
    said: list[str] = []
    first, hangs = Worker(), StartsLate()
    new_workers = [hangs, Worker()]
    pool = await pool_of([first, Worker()], new_workers=new_workers, start_s=0.5, tell=said.append)
    first.kill()
    await settle()
    hangs.loads.clear()
    await pool.load_checkpoint(Path("other"), ONE)
    hangs.may.set()
    await settle()
    await push(pool, 2)
    assert await restarted(pool, 2) == [("serving", 2), ("serving", 0)]
    assert "w: w did not read other within 0 s" in said


@in_loop
async def test_a_learner_that_dies_in_a_push_is_said_to_have_died() -> None:
    pool, sender = await pool_of([Worker()]), DeadSender()
    sender.sent = 1
    first = Push(manifest=empty_push(1, nbytes=64).manifest, delivery=Delivery(sender, processes=1))
    with pytest.raises(LearnerDied, match="rank 0"):
        await pool.load_weights(first)


@in_loop
async def test_too_many_deaths_end_what_waits_and_are_named() -> None:
    dying = [Worker(name=f"life {n}", held=True) for n in range(3)]
    pool = await pool_of(dying[:1], new_workers=dying[1:], restarts=1)
    answering = asyncio.create_task(pool.run_group(TICKET, 1))
    for worker in dying[:2]:
        await settle()
        worker.kill()
    with pytest.raises(TooManyRestarts, match=r"supervision.restarts=1 .*life 0 died.*life 1 died"):
        await answering


@in_loop
async def test_each_of_many_workers_may_die_as_often_as_one_alone() -> None:
    fleet = [Worker(name=f"first {n}") for n in range(8)]
    pool = await pool_of(fleet, new_workers=[Worker(name=f"second {n}") for n in range(8)], restarts=1)
    for worker in fleet:
        worker.kill()
        await settle()
    await pool.run_group(TICKET, 1)
    assert [process.restarts for process in pool.processes()] == [1] * 8


def test_the_deaths_of_one_place_within_the_window_are_counted() -> None:
    now = [0.0]
    limit = RestartLimit(2, window_s=100.0, clock=lambda: now[0])
    for at, place in ((0.0, 1), (10.0, 2), (20.0, 1), (30.0, 2), (101.0, 1)):
        now[0] = at
        limit.count(WorkerDied(f"{place} at {at:.0f}"), place=place)
    with pytest.raises(TooManyRestarts, match=r"81 s ago: 1 at 20; 0 s ago: 1 at 101; 0 s ago: again\)"):
        limit.count(WorkerDied("again"), place=1)


def test_deaths_that_come_together_count_once() -> None:
    now = [0.0]
    limit = RestartLimit(1, window_s=100.0, together_s=10.0, clock=lambda: now[0])
    for at in (0.0, 1.0, 9.0):
        now[0] = at
        limit.count(WorkerDied(f"at {at:.0f}"))
    now[0] = 11.0
    with pytest.raises(TooManyRestarts, match=r"11 s ago: at 0, at 1, at 9; 0 s ago: at 11"):
        limit.count(WorkerDied("at 11"))


@in_loop
async def test_an_error_at_the_first_start_ends_all_workers() -> None:
    workers = [Worker(unplaced=True), Worker(broken=ValueError("no experts here"))]
    with pytest.raises(ValueError, match="no experts here"):
        await pool_of(workers)
    assert all(worker.dead.is_set() for worker in workers)


@in_loop
async def test_a_replacement_that_can_not_start_is_replaced() -> None:
    first = Worker()
    pool = await pool_of([first], new_workers=[Worker(broken=RuntimeError("no memory")), Worker()])
    first.kill()
    await settle()
    assert states(pool) == [("serving", 2)]


@in_loop
async def test_a_worker_that_fails_at_once_does_not_attract_the_work() -> None:
    sick, well = Worker(failures=4), Worker()
    pool = await pool_of([sick, well], retries=1)
    for _ in range(40):
        await pool.run_group(TICKET, 4)
    assert len(sick.calls) <= 2
    assert len(well.calls) >= 40


@in_loop
async def test_an_engine_that_generates_nothing_is_taken_for_dead() -> None:
    sick = Worker(failures=2, kind=FailureKind.ENGINE)
    pool = await pool_of([sick], new_workers=[Worker()])
    for _ in range(4):
        await pool.run_group(TICKET, 2)
    assert (len(sick.calls), states(pool)) == (3, [("serving", 1)])


@in_loop
async def test_superfluous_workers_finish_their_groups() -> None:
    first, second = Worker(name="0", held=True), Worker(name="1", held=True)
    pool = await pool_of([first], new_workers=[second, Worker()])
    pool.resize(2)
    await settle()
    seen: list[Any] = [states(pool)]
    groups = [asyncio.create_task(pool.run_group(TICKET, 1)) for _ in range(3)]
    await settle()
    pool.resize(1)
    seen.append([(slot.state, len(slot.tickets)) for slot in pool.processes()])
    await push(pool, 1)  # a draining worker continues under new weights
    seen.append(second.did)
    late = asyncio.create_task(pool.run_group(TICKET, 1))
    await settle()
    seen.append((first.running, second.running))
    for worker in (first, second):
        worker.released.set()
    await asyncio.gather(late, *groups)
    await settle()
    assert [*seen, second.closed, first.closed, [slot.name for slot in pool.processes()]] == [
        [("serving", 0), ("serving", 0)],
        [("serving", 2), ("draining", 1)],
        ["start base 0", "group 3", "push 1"],
        (3, 1),
        True,
        False,
        ["0"],
    ]


@in_loop
async def test_a_draining_worker_is_not_replaced() -> None:
    stays, leaves = Worker(name="stays", held=True), Worker(name="leaves", held=True)
    pool = await pool_of([stays, leaves])
    groups = [asyncio.create_task(pool.run_group(TICKET, 1)) for _ in range(2)]
    await settle()
    pool.resize(1)
    with pytest.raises(ValueError, match="0 rollout workers"):
        pool.resize(0)
    leaves.kill()
    await settle()
    stays.released.set()
    await asyncio.gather(*groups)
    assert (len(stays.calls), [slot.name for slot in pool.processes()]) == (2, ["stays"])


@in_loop
async def test_a_worker_waits_for_a_machine_while_others_serve() -> None:
    said: list[str] = []
    pool = await pool_of([Worker()], new_workers=[Worker(name="2nd", unplaced=True)], start_s=0.05, tell=said.append)
    pool.resize(2)
    await asyncio.sleep(0.2)
    seen = [states(pool)]
    pool.resize(1)
    await settle()
    assert [*seen, states(pool)] == [[("serving", 0), ("starting", 0)], [("serving", 0)]]
    assert said[0] == "2nd waits for a machine with room"


@in_loop
async def test_a_failed_additional_worker_is_dropped() -> None:
    said: list[str] = []
    added = Worker(name="2nd", broken=RuntimeError("no memory"))
    pool = await pool_of([Worker()], new_workers=[added], restarts=0, tell=said.append)
    pool.resize(2)
    await settle()
    await pool.run_group(TICKET, 1)
    assert states(pool) == [("serving", 0)]
    assert said == ["2nd did not start: RuntimeError: no memory; it is not added, the other workers continue"]


POISON = 7
TICKETS = [replace(TICKET, number=number, task=replace(TASK, key=str(number))) for number in range(10)]


class Poisoned(Worker):
    """Dies a little after it got the task that kills every worker."""

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        if ticket.number == POISON:
            asyncio.get_running_loop().call_soon(self.kill)
            self.released.clear()
        return await super().run_group(ticket, samples, attempt, partial)


@in_loop
async def test_a_task_that_kills_every_worker_fails() -> None:
    said: list[str] = []
    reissued: list[int] = []
    lives = [Poisoned(name=f"life {n}") for n in range(7)]
    pool = await pool_of(lives[:4], new_workers=lives[4:], retries=2, tell=said.append)
    pool.on_reissue = lambda number, why: reissued.append(number)
    groups = await asyncio.gather(*(pool.run_group(ticket, 4) for ticket in TICKETS))
    assert [len(group.trajectories) for group in groups] == [4 * (number != POISON) for number in range(10)]
    poison = groups[POISON]
    assert [failure.kind for failure in poison.failures] == [FailureKind.ENGINE] * 4
    assert "math/7" in poison.failures[0].message
    assert [line for line in said if "group 7" in line] == [f"group 7 failed: {poison.failures[0].message}"]
    assert reissued.count(POISON) == 2
    assert max(reissued.count(number) for number in range(10)) == 2


@in_loop
async def test_groups_that_met_two_deaths_are_in_flight_at_once() -> None:
    lives = [Worker(name=f"life {n}", held=True) for n in range(3)]
    pool = await pool_of(lives[:1], new_workers=lives[1:])
    answering = [asyncio.create_task(pool.run_group(ticket, 2)) for ticket in TICKETS]
    for life in lives[:2]:
        await settle()
        assert life.running == len(TICKETS)
        life.kill()
    await settle()
    assert lives[2].running == len(TICKETS)
    lives[2].released.set()
    groups = await asyncio.gather(*answering)
    assert [len(group.trajectories) for group in groups] == [2] * len(TICKETS)
