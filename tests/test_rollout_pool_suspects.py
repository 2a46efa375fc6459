"""A task that every worker dies of is given up, and costs no other one, driven with plain objects."""

import asyncio
from dataclasses import replace

from plain_pool import TASK, TICKET, Worker, pool_of

from rollout.episodes.begun import BegunGroup
from rollout.pool.suspects import Suspects
from rollout.trajectory import FailureKind, Group, Ticket

POISON = 7


class Poisoned(Worker):
    """Dies a little after it was given the task that nobody survives."""

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        if ticket.number == POISON:
            asyncio.get_running_loop().call_soon(self.kill)
            self.released.clear()
        return await super().run_group(ticket, samples, attempt, begun)


def test_a_task_that_kills_every_worker_fails_and_is_named_and_the_others_are_answered() -> None:
    said: list[str] = []
    reissued: list[int] = []

    async def work() -> list[Group]:
        lives = [Poisoned(name=f"life {n}") for n in range(4)]
        pool = await pool_of(
            lives[:1], newcomers=lives[1:], retries=2, suspects=Suspects(together_s=0), tell=said.append
        )
        pool.on_reissue = lambda number, why: reissued.append(number)
        tickets = [replace(TICKET, number=number, task=replace(TASK, key=str(number))) for number in range(10)]
        return await asyncio.gather(*(pool.run_group(ticket, 4) for ticket in tickets))

    groups = asyncio.run(asyncio.wait_for(work(), 20))
    assert [len(group.trajectories) for group in groups] == [4 * (number != POISON) for number in range(10)]
    poison = groups[POISON]
    assert [failure.kind for failure in poison.failures] == [FailureKind.ENGINE] * 4
    assert "math/7 was being sampled when 3 rollout workers died" in poison.failures[0].message
    (line,) = [line for line in said if "given up" in line]
    assert line == f"group 7 is given up: {poison.failures[0].message}"
    assert reissued.count(POISON) == 2
    assert max(reissued.count(number) for number in range(10)) == 2


def test_deaths_at_once_count_as_one_and_a_group_that_was_answered_is_forgotten() -> None:
    now = [0.0]

    def deaths(suspects: Suspects, *times: float) -> list[bool]:
        found = []
        for now[0] in times:
            found.append(suspects.is_guilty(POISON))
        return found

    suspects = Suspects(together_s=10, clock=lambda: now[0])
    assert deaths(suspects, 0, 1, 2, 50, 55, 100) == [False, False, False, False, False, True]
    assert deaths(suspects, 200, 300) == [False, False]
    suspects.forget(POISON)
    assert deaths(suspects, 400, 500, 600) == [False, False, True]


def test_suspects_take_turns_until_one_of_them_is_found() -> None:
    async def work() -> list[str]:
        suspects, did = Suspects(together_s=0), []
        for number in (1, 2, 3):
            suspects.is_guilty(number)
            suspects.is_guilty(number)

        async def sample(number: int) -> None:
            async with suspects.turn(number):
                did.append(f"{number} begins")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if number == 2:
                    assert suspects.is_guilty(number)
                did.append(f"{number} ends")

        await asyncio.gather(*(sample(number) for number in (1, 2, 3, 4)))
        return did

    did = asyncio.run(work())
    assert did.index("1 ends") < did.index("2 begins")  # while 4, whom no death met, does not wait
    assert did.index("4 begins") < did.index("1 ends")
    assert did.index("2 ends") < did.index("3 begins")
