"""`anytime`: answers and the values of partial thoughts, against plain recomputation from the question."""

import random
import re
from itertools import accumulate

import pytest

from temper.envs.catalog import configure_env
from temper.envs.core.task import Task
from temper.envs.questions.anytime import TASKS, count_votes, generate

DRAWS = 60


def tasks(name: str, level: int = 1) -> list[Task]:
    rng = random.Random(7)
    return [generate(rng, level, tasks=(name,)) for _ in range(DRAWS)]


def question(task: Task) -> str:
    return str(task.messages[0]["content"])


def test_a_tally_has_one_leader_after_the_best_lines() -> None:
    for task in tasks("tally", level=2):
        shares, votes, _ = question(task).split("; ")
        weights = {share[0]: int(share[1:]) for share in shares.split()}
        totals = dict.fromkeys("abcd", 0)
        cast = [(vote[0], vote[1]) for vote in votes.split()]
        for person, name in cast:
            totals[name] += weights[person]
        assert [name for name in totals if totals[name] == max(totals.values())] == [task.spec["answer"]]
        seen = [line.split()[0] for line in task.spec["best_lines"]]
        heaviest = sorted((weights[person] for person, _ in cast), reverse=True)
        assert [int(vote[2:]) for vote in seen] == heaviest[: len(seen)]
        left = sum(heaviest) - sum(int(vote[2:]) for vote in seen)
        first, second = sorted(map(int, task.spec["best_lines"][-1].split()[1].split(",")))[:-3:-1]
        assert first - second > left


def test_leaders_share_ties_until_the_lead_is_certain() -> None:
    found = count_votes([("p", "a"), ("q", "b"), ("q", "a")], {"p": 2, "q": 2}, "ab")
    assert found.lines == ["pa2 2,0", "qb2 2,2", "qa2 4,2"]
    assert found.leaders == [["a", "b"], ["a"], ["a", "b"], ["a"]]
    assert found.certain == [False, False, False, True]


def test_a_scan_ends_where_the_running_total_reaches_the_limit() -> None:
    for task in tasks("scan"):
        items = re.findall(r"([a-z])(\d)\b", question(task).split(";")[0])
        limit = int(re.findall(r"where is (\d+)", question(task))[0])
        totals = list(accumulate(int(number) for _, number in items))
        place = next(place for place, total in enumerate(totals) if total >= limit)
        assert (items[place][0], place + 1) == (task.spec["answer"], len(task.spec["best_lines"]))
        assert [int(line[1:]) for line in task.spec["best_lines"][:-1]] == [limit - each for each in totals[:place]]
        assert task.spec["best_lines"][-1] == f"{items[place][0]}0"
        assert task.spec["chances"] == [1 / (len(items) - seen) for seen in range(place + 1)] + [1.0]


def test_a_filter_sums_the_marked_ones_in_its_best_lines() -> None:
    for task in tasks("filter"):
        marked = re.findall(r"\*[a-z](\d)", question(task))
        assert task.spec["answer"] == str(sum(map(int, marked)))
        assert len(task.spec["best_lines"]) == len(marked)
        assert task.spec["best_lines"][-1].endswith(f" {task.spec['answer']}")


@pytest.mark.parametrize("name", TASKS)
def test_most_demonstrations_waste_lines_and_some_do_not(name: str) -> None:
    wasted = [1 + task.spec["steps"].count("\n") > len(task.spec["best_lines"]) for task in tasks(name)]
    assert DRAWS / 2 < sum(wasted) < DRAWS
    values = [task.spec["chances"] for task in tasks(name)]
    assert all(len(found) == len(task.spec["best_lines"]) + 1 for found, task in zip(values, tasks(name), strict=True))
    assert all(found[-1] == 1.0 for found in values)


def test_an_option_names_one_task() -> None:
    assert configure_env("anytime", {"task": "scan"}).options == {"task": "scan"}
