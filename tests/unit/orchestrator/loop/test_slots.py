"""The slots that are held, counted as they change, beside the same counts made anew from all of them."""

import random
from typing import cast

import pytest

from temper.orchestrator.loop.buffer import MISSING, HeldSlots, Slot, SlotState
from temper.orchestrator.loop.mixture import Draw
from temper.rollout.trajectory import Group, WeightVersion

GROUP = cast(Group, object())
VERSIONS = 6


def change(held: HeldSlots, plain: list[Slot], rng: random.Random, number: int) -> None:
    """Make one random change that the buffer could make, to the slots and to the plain list of them."""
    what = rng.choice(("add", "add", "enter", "enter", "finish", "remove"))
    if what == "add" or not plain:
        state = rng.choice(list(SlotState))
        undecided = state is SlotState.GENERATING and rng.random() < 0.3
        group = None if state in MISSING and not undecided else GROUP
        version = WeightVersion(step=rng.randrange(VERSIONS))
        slot = Slot(number=number, draw=Draw(env="math", index=number), admitted=version, state=state, group=group)
        held.add(slot)
        plain.append(slot)
        return
    slot = rng.choice(plain)
    later = [state for state in SlotState if list(SlotState).index(state) > list(SlotState).index(slot.state)]
    if what == "remove":
        held.remove(slot)
        plain.remove(slot)
    elif what == "finish" and slot.state is SlotState.GENERATING:
        held.finish(slot, GROUP)
    elif what == "enter" and later:
        held.enter(slot, rng.choice(later))


@pytest.mark.parametrize("seed", range(5))
def test_counts_that_follow_changes_are_those_of_a_plain_count(seed: int) -> None:
    rng, held, plain = random.Random(seed), HeldSlots(), list[Slot]()
    for number in range(400):
        change(held, plain, rng, number)
        missing = [slot for slot in plain if slot.state in MISSING]
        assert list(held) == plain
        assert len(held) == len(plain)
        assert held.missing == missing
        assert held.counts == {state: sum(slot.state is state for slot in plain) for state in SlotState}
        assert all(held.in_state(state) == [slot for slot in plain if slot.state is state] for state in SlotState)
        assert held.any_undecided == any(slot.group is not None for slot in missing)
        for version in range(-1, VERSIONS):
            assert held.missing_until(version) == sum(slot.admitted.step <= version for slot in missing)
    assert [held[slot.number] for slot in plain] == plain
