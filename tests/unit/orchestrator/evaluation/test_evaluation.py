"""Evaluation results: scores per task, and no score if other weights answered."""

import json
import math
from dataclasses import replace
from pathlib import Path

from unit.orchestrator.evaluation.test_budget_curve import RolloutPool, answer, evaluated, group, task_under, turn

from temper.envs.core.thinking_mode import UNLIMITED
from temper.envs.source import content_key
from temper.orchestrator.evaluation.budget_curve import task_scores
from temper.orchestrator.evaluation.record import read_evaluations
from temper.orchestrator.evaluation.scores import drop_stale, env_result, is_of
from temper.rewards.score import Outcome, Score
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Ticket, Trajectory, Turn, WeightVersion


def under(version: int, *, last: int | None = None) -> Turn:
    """Build a turn of two tokens sampled at `version`. The second token has version `last` if set."""
    versions = (version, version if last is None else last)
    return replace(
        turn(1, 1),
        sampled_ids=as_ids((2, 3)),
        logprobs_T=as_floats((-1.0,) * 2),
        versions_T=as_ids(versions),
        injected_T=as_marks((False, True)),
    )


def answered(key: str, *turns: Turn, env: str = "math", right: bool = True, failed: int = 0) -> Group:
    task = task_under(UNLIMITED, key)
    task = replace(task, env=replace(task.env, name=env))
    return group(task, [answer(task, right, *turns)], failed=failed)


def test_an_answer_is_of_the_weights_that_sampled_every_token_of_it() -> None:
    task = task_under(UNLIMITED)
    assert is_of(answer(task, True, under(3), under(3)), WeightVersion(step=3))
    assert not is_of(answer(task, True, under(3), under(3, last=2)), WeightVersion(step=3))
    assert not is_of(answer(task, True, under(4)), WeightVersion(step=3))


def test_one_token_of_other_weights_voids_the_score_of_its_environment_and_of_no_other() -> None:
    groups = [answered("a", under(5)), answered("b", under(5, last=4)), answered("c", under(5), env="code", failed=2)]
    sound, stale = drop_stale(groups, WeightVersion(step=5))
    assert dict(stale) == {"math": 1}
    assert [len(one.trajectories) for one in sound] == [0, 0, 1]
    assert len(sound[2].failed) == 2  # failed answers need no weight version
    found = env_result(sound[:2], asked=2, stale=stale["math"])
    assert (found["stale"], found["samples"], found["failures"], found["complete"]) == (1, 0, 0, 0)
    assert all(
        math.isnan(found[name]) for name in ("avg_at_k", "avg_at_k_failures_as_zero", "pass_at_k", "stderr", "reward")
    )


def test_the_parts_of_the_reward_are_means_over_the_answers_that_have_them() -> None:
    one, other = answered("a", under(1)), answered("b", under(1))
    judged = [
        replace(group.trajectories[0], score=Score(outcome=Outcome.OK, parts=parts))
        for group, parts in ((one, {"correct": 1.0, "loose": 1.0}), (other, {"correct": 0.0}))
    ]
    groups = [replace(group, trajectories=(found,)) for group, found in zip((one, other), judged, strict=True)]
    found = env_result(groups, asked=2)
    assert {name: value for name, value in found.items() if "/" in name} == {"parts/correct": 0.5, "parts/loose": 1.0}


def test_the_score_of_a_task_says_what_was_asked_and_what_became_of_it() -> None:
    right, wrong = answered("a", under(1), failed=1), answered("b", under(1), right=False)
    scores = task_scores([right, wrong])
    assert [(one.key, one.right, one.scored, one.failed) for one in scores] == [("a", 1, 1, 1), ("b", 0, 1, 0)]
    assert scores[0].content == content_key(right.ticket.task)


class StaleEngine(RolloutPool):
    """One of two engines. It missed the last push and receives every second group of math."""

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        group = await super().run_group(ticket, samples)
        if ticket.task.env.name != "math" or ticket.number % 2:
            return group
        return replace(group, trajectories=tuple(map(as_before, group.trajectories)))


def as_before(trajectory: Trajectory) -> Trajectory:
    turns = tuple(replace(one, versions_T=one.versions_T - 1) for one in trajectory.turns)
    return replace(trajectory, turns=turns)


def test_an_engine_that_serves_older_weights_voids_the_score_by_name_and_the_others_stay(tmp_path: Path) -> None:
    found, metrics, screen = evaluated(tmp_path, pool=StaleEngine())
    math_, code = found["envs"]["math"], found["envs"]["code"]
    assert (math_["stale"], math_["samples"], math_["avg_at_k"], math_["pass_at_k"]) == (2, 0, None, None)
    assert (code["stale"], code["avg_at_k"]) == (0, 1.0)
    assert (metrics["math/stale"], metrics["code/avg_at_k"]) == (2.0, 1.0)
    assert math.isnan(metrics["math/avg_at_k"])
    assert "the score of math is stale: 2 answers" in screen
    assert [task["scored"] for task in found["tasks"]["math"]] == [0, 0]
    (evaluation,) = read_evaluations(tmp_path / "run" / "eval")
    assert evaluation.envs["math"].stale == 2
    written = (tmp_path / "run" / "trajectories" / "eval-rl.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["env"] == "math" for line in written) == 4  # trajectories of stale groups stay on disk


class StaleUnderBudgets(StaleEngine):
    """Serves older weights after the thought."""

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        group = await RolloutPool.run_group(self, ticket, samples)
        if ticket.task.env.name != "math":
            return group
        older = (replace(one, forced_answers=tuple(map(as_before, one.forced_answers))) for one in group.trajectories)
        return replace(group, trajectories=tuple(older))


def test_a_point_of_a_curve_is_void_by_itself(tmp_path: Path) -> None:
    found, _, screen = evaluated(tmp_path, "eval.budgets=[4]", pool=StaleUnderBudgets())
    assert found["envs"]["math"]["avg_at_k"] == 1.0
    curves = {env: {point["mode"]: point["accuracy"] for point in points} for env, points in found["curve"].items()}
    assert curves["math"] == {"budget": None, "unlimited": 1.0}
    assert curves["code"] == {"budget": 1.0, "unlimited": 1.0}
    assert "the score of math is stale" in screen


def test_without_a_number_a_whole_set_is_asked_in_order_each_row_once(tmp_path: Path) -> None:
    rows = [
        json.dumps({"question": f"What is {n % 70} + {n % 70}?", "answer": f"#### {2 * (n % 70)}"}) for n in range(71)
    ]
    (tmp_path / "test.jsonl").write_text("\n".join(rows) + "\n")
    pool = RolloutPool()
    found, _, screen = evaluated(tmp_path, f"envs.math.eval_data={tmp_path}/test.jsonl", "eval.tasks=null", pool=pool)
    asked = [one.task.messages[-1]["content"] for one in pool.tickets if one.task.env.name == "math"]
    assert [question.partition("?")[0] for question in asked] == [f"What is {n % 70} + {n % 70}" for n in range(71)]
    assert (found["envs"]["math"]["tasks"], found["envs"]["math"]["tasks_asked"]) == (71, 71)  # two tasks are equal
    assert len({task["key"] for task in found["tasks"]["math"]}) == 71
    assert found["envs"]["code"]["tasks"] == 64  # generated tasks
    assert "requested held-out tasks" not in screen
