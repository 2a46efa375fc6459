"""Deaths of workers while groups are in flight, driven with plain objects: a task that kills fails, and costs no other one."""

import asyncio
from dataclasses import replace

from support.in_loop import in_loop
from support.plain_pool import TASK, TICKET, Worker, pool_of, settle

from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.trajectory import FailureKind, Group, Ticket

POISON = 7
TICKETS = [replace(TICKET, number=number, task=replace(TASK, key=str(number))) for number in range(10)]


class Poisoned(Worker):
    """Dies a little after it was given the task that nobody survives."""

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        if ticket.number == POISON:
            asyncio.get_running_loop().call_soon(self.kill)
            self.released.clear()
        return await super().run_group(ticket, samples, attempt, begun)


@in_loop
async def test_a_task_that_kills_every_worker_fails_and_is_named_and_the_others_are_answered() -> None:
    said: list[str] = []
    reissued: list[int] = []
    lives = [Poisoned(name=f"life {n}") for n in range(7)]
    pool = await pool_of(lives[:4], newcomers=lives[4:], retries=2, tell=said.append)
    pool.on_reissue = lambda number, why: reissued.append(number)
    groups = await asyncio.gather(*(pool.run_group(ticket, 4) for ticket in TICKETS))
    assert [len(group.trajectories) for group in groups] == [4 * (number != POISON) for number in range(10)]
    poison = groups[POISON]
    assert [failure.kind for failure in poison.failures] == [FailureKind.ENGINE] * 4
    assert "math/7 was being sampled when 3 rollout workers died" in poison.failures[0].message
    assert [line for line in said if "given up" in line] == [f"group 7 is given up: {poison.failures[0].message}"]
    assert reissued.count(POISON) == 2
    assert max(reissued.count(number) for number in range(10)) == 2


@in_loop
async def test_groups_that_met_two_deaths_are_in_flight_at_once() -> None:
    lives = [Worker(name=f"life {n}", held=True) for n in range(3)]
    pool = await pool_of(lives[:1], newcomers=lives[1:])
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
