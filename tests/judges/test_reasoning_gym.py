"""The scorers of reasoning-gym on its own answers and on wrong ones, through the environment."""

import random
from importlib.metadata import version
from typing import Any

import pytest
from support.bound import bound

from temper.envs.catalog import configure_env
from temper.envs.puzzles.library import shared_library
from temper.envs.transcript import score_turns

TASKS = 2
WITHOUT = {"boxnet", "rush_hour"}
"""Data sets that give no answers."""


@pytest.mark.judges(suite="reasoning-gym", run=f"{TASKS} tasks of every data set: its answer earns 1, wrong ones less")
def test_oracles_earn_one_and_mutants_less(record_property: Any) -> None:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed (its pycosat needs a C compiler)")
    record_property("version", version("reasoning-gym"))
    right, wrong, without, differing = 0, 0, set(), []
    for name in shared_library("making").datasets():
        env = configure_env("reasoning_gym", {"dataset": name})
        assert env.generate is not None
        assert env.reference is not None
        assert env.negatives is not None
        for seed in range(TASKS):
            task = bound(env.generate(random.Random(seed), 1), env)
            try:
                oracle = score_turns(task, env.reference(task)).score.parts.get("correct")
            except ValueError:
                without.add(name)
            else:
                right += oracle == 1.0
                differing += [f"{name}, seed {seed}: {oracle}"] * (oracle != 1.0)
            for kind, turns in env.negatives(task):
                mutant = score_turns(task, turns).score.parts.get("correct", 1.0)
                wrong += mutant < 1.0
                differing += [f"{name}, seed {seed}, {kind}: {mutant}"] * (mutant == 1.0)
    record_property("passed", f"{right} answers, {wrong} wrong ones")
    record_property("differs", len(differing))
    record_property("why", f"no answers in {', '.join(sorted(without))}")
    assert differing == []
    assert without == WITHOUT
