"""Accuracy by thinking budget: requested budgets and measured values, on hand-built answers."""

import asyncio
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Mode, Thinking, up_to
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.supervised import RftConfig
from temper.orchestrator.evaluation.budget_curve import (
    BudgetPoint,
    Condition,
    budget_conditions,
    budget_curve,
    budget_for_accuracy,
    median_free_thinking,
    overshoots,
)
from temper.orchestrator.evaluation.evaluator import further_passes
from temper.orchestrator.evaluation.intervals import wilson_interval
from temper.orchestrator.evaluation.paired import TaskScore
from temper.orchestrator.evaluation.record import read_evaluations
from temper.orchestrator.evaluation.scores import env_result
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.loop.watches import TooManyFailures
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.folder import RunDir, RunState, finite
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.engines import Engines
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.eval import evaluate, next_order
from temper.orchestrator.stages.registry import EVAL, RFT
from temper.orchestrator.stages.supervised_loop import sample_once
from temper.orchestrator.tracking.tracker import Tracker
from temper.rewards.score import CORRECT, Score
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import (
    Closed,
    Failure,
    FailureKind,
    Group,
    Stop,
    ThinkingStats,
    Ticket,
    Trajectory,
    Turn,
    TurnFault,
    WeightVersion,
)


def turn(thinking: int, answer: int, closed: Closed = Closed.ITSELF, *, formed: bool = True) -> Turn:
    """Build a turn with these measurements and arbitrary content."""
    return Turn(
        context_ids=as_ids((1,)),
        sampled_ids=as_ids((2,)),
        logprobs_T=as_floats((-1.0,)),
        versions_T=as_ids((0,)),
        injected_T=as_marks((False,)),
        text="",
        thinking=ThinkingStats(tokens=thinking, answer_tokens=answer, closed=closed),
        faults=() if formed else (TurnFault.THINKING,),
    )


def answer(task: Task, right: bool, *turns: Turn, stop: Stop = Stop.ENV) -> Trajectory:
    return Trajectory(
        task=task, turns=turns, stop=stop, reward=float(right), score=Score(parts={CORRECT: float(right)})
    )


def task_under(thinking: Thinking, key: str = "k") -> Task:
    return Task(
        env=EnvRef(name="math"), key=key, messages=({"role": "user", "content": "?"},), spec={}, thinking=thinking
    )


def group(task: Task, answers: Sequence[Trajectory], *, failed: int = 0) -> Group:
    lost = Failure(kind=FailureKind.ENGINE, message="lost")
    return Group(
        ticket=Ticket(number=0, task=task, admitted=WeightVersion(step=0)),
        trajectories=tuple(answers),
        failed=tuple(Trajectory(task=task, turns=(), stop=Stop.FAILURE, failure=lost) for _ in range(failed)),
    )


def two_tasks() -> list[Group]:
    """Two tasks with a budget of 10 tokens: one has a correct and a wrong answer, the other one correct answer."""
    first, second = task_under(up_to(10), "a"), task_under(up_to(10), "b")
    right = answer(first, True, turn(10, 4, Closed.ABRUPT), turn(6, 2))
    wrong = answer(first, False, turn(13, 6, Closed.LINE_END, formed=False), stop=Stop.LENGTH)
    return [group(first, [right, wrong]), group(second, [answer(second, True, turn(3, 8, Closed.NEVER))], failed=1)]


def test_a_point_holds_what_the_answers_say() -> None:
    (point,) = budget_curve(two_tasks(), [Condition(thinking=up_to(10), share=0.5)], scope="turn")
    assert (point.mode, point.budget, point.share, point.label) == (Mode.BUDGET, 10, 0.5, "budget-10")
    assert (point.tasks, point.samples, point.failures) == (2, 3, 1)
    assert point.accuracy == 0.75  # mean of 1/2 and 1
    assert point.stderr == pytest.approx(0.25)  # standard deviation 0.25 * sqrt(2), divided by the root of 2 tasks
    assert point.well_formed == pytest.approx(3 / 4)  # one of four turns has a fault
    assert point.closed == {"itself": 0.25, "line_end": 0.25, "abrupt": 0.25, "never": 0.25}  # shares of four turns
    assert point.thinking_tokens == pytest.approx((16 + 13 + 3) / 3)
    assert (point.thinking_tokens_turn, point.thinking_tokens_median) == (8.0, 8.0)  # of 3, 6, 10 and 13
    assert point.answer_tokens == pytest.approx((6 + 6 + 8) / 3)
    assert point.answer_tokens_turn == 5.0
    assert (point.overshoot, point.overshoot_max) == (0.75, 3)  # only 13 exceeds the budget
    assert point.truncated == pytest.approx(1 / 3)
    raw = json.loads(json.dumps(point.as_json()))
    assert raw["interval"] == list(point.interval)
    assert BudgetPoint.read(raw) == point


def test_a_budget_of_an_episode_is_what_its_earlier_turns_left() -> None:
    task = task_under(up_to(10))
    said = answer(task, True, turn(8, 1), turn(5, 1), turn(4, 1))
    assert overshoots(said, 10, scope="episode") == [0, 3, 4]
    assert overshoots(said, 10, scope="turn") == [0, 0, 0]


def test_points_stand_in_the_order_of_their_budgets_and_take_only_the_groups_of_their_mode() -> None:
    modes = [UNLIMITED, up_to(8), OFF, up_to(16), LOW_EFFORT]
    groups = [group(task, [answer(task, False, turn(1, 1))]) for task in map(task_under, modes)]
    points = budget_curve(groups, [Condition(thinking=mode) for mode in modes], scope="turn")
    assert [point.label for point in points] == ["off", "low_effort", "budget-8", "budget-16", "unlimited"]
    assert [point.tasks for point in points] == [1] * 5
    assert all((point.overshoot, point.overshoot_max) == (0.0, 0) for point in points)


def test_a_mode_without_a_single_score_has_a_point_that_measures_nothing() -> None:
    (point,) = budget_curve([group(task_under(OFF), [], failed=2)], [Condition(thinking=OFF)], scope="turn")
    assert (point.tasks, point.samples, point.failures) == (1, 0, 2)
    measures = (point.accuracy, point.accuracy_low, point.stderr, point.well_formed, point.thinking_tokens)
    assert all(math.isnan(value) for value in (*measures, *point.closed.values(), *point.interval))
    again = BudgetPoint.read(json.loads(json.dumps(finite(point.as_json()))))
    assert math.isnan(again.accuracy)
    assert again.budget is None


def test_nothing_that_was_not_scored_is_a_zero() -> None:
    lost = env_result([group(task_under(UNLIMITED, key), [], failed=4) for key in ("a", "b")], asked=64)
    counts = {"tasks": 2, "tasks_asked": 64, "samples": 0, "failures": 8, "complete": 0, "stale": 0}
    assert {name: lost.pop(name) for name in counts} == counts
    assert all(math.isnan(value) for value in lost.values())


def test_failures_stand_beside_the_accuracy_and_bound_it_from_below() -> None:
    tasks = [task_under(UNLIMITED, key) for key in ("a", "b", "c")]
    right, wrong = ([answer(task, good, turn(1, 1)) for task in tasks] for good in (True, False))
    found = env_result(
        [
            group(tasks[0], [right[0], right[0]]),
            group(tasks[1], [wrong[1], wrong[1]]),
            group(tasks[2], [right[2]], failed=1),  # without its failed answer, this task would count as all correct
        ],
        asked=3,
    )
    assert (found["samples"], found["failures"], found["complete"]) == (5, 1, 2)
    assert found["avg_at_k"] == pytest.approx(2 / 3)
    assert found["avg_at_k_failures_as_zero"] == pytest.approx(1 / 2)
    assert found["pass_at_k"] == 0.5  # over the two complete tasks


def test_the_median_free_thought_is_over_turns_or_over_episodes() -> None:
    task = task_under(UNLIMITED)
    groups = [group(task, [answer(task, True, turn(2, 1), turn(4, 1)), answer(task, True, turn(9, 1))])]
    assert median_free_thinking(groups, scope="turn") == 4.0
    assert median_free_thinking(groups, scope="episode") == 7.5
    assert median_free_thinking([group(task, [], failed=1)], scope="turn") is None


def test_shares_become_budgets_of_at_least_one_token_and_each_setting_stands_once() -> None:
    settings = budget_conditions([5, 5], [0.5, 0.01, 1.0], free_thinking=10.4)
    assert [(one.thinking.budget, one.share) for one in settings] == [(5, None), (5, 0.5), (1, 0.01), (10, 1.0)]


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_those_of_the_literature(right: int, count: int, low: float, high: float) -> None:
    """Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I."""
    assert wilson_interval(right / count, count) == pytest.approx((low, high), abs=6e-5)


def test_a_wilson_interval_holds_its_share_for_every_number_of_samples() -> None:
    for count in range(1, 1000):
        assert wilson_interval(1.0, count)[1] == 1.0
        assert wilson_interval(0.0, count)[0] == 0.0


def test_the_interval_of_equal_answers_has_a_width_and_otherwise_the_wider_one_counts() -> None:
    task = task_under(UNLIMITED)
    groups = [group(task, [answer(task, True, turn(1, 1))] * 2) for _ in range(2)]
    (point,) = budget_curve(groups, [Condition(thinking=UNLIMITED)], scope="turn")
    assert (point.accuracy, point.stderr) == (1.0, 0.0)
    assert point.interval == pytest.approx((4 / (4 + 1.96**2), 1.0))
    (spread,) = budget_curve(two_tasks(), [Condition(thinking=up_to(10))], scope="turn")
    assert spread.interval == (0.0, 1.0)  # Student's t with one degree of freedom; Wilson's interval is 0.25 to 0.96


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"budgets": [8, -1]}, "eval.budgets has -1"),
        ({"budget_shares": [0.5, 0.0]}, "eval.budget_shares has 0.0"),
        ({"budget_shares": [float("nan")]}, "eval.budget_shares has nan"),
    ],
)
def test_an_impossible_budget_is_named(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EvalConfig(**setting)


def test_passes_go_by_kind_and_put_every_budget_of_an_environment_at_once() -> None:
    config = EvalConfig(budgets=[4], budget_shares=[0.5, 1.0], no_thinking=True, low_effort=True)
    off, _, budgets = further_passes(config, {"code": 8.0, "math": 40.0})
    assert budgets.name == "budgets in tokens: code 4, 4, 8; math 4, 20, 40"
    plain = [task_under(UNLIMITED, key) for key in ("a", "b")]
    assert [task.thinking for task in off.tasks(plain)] == [OFF, OFF]
    assert [(task.key, task.thinking.budget) for task in budgets.tasks(plain)] == [
        (key, budget) for key in ("a", "b") for budget in (4, 20, 40)
    ]
    shared = further_passes(config, {"math": 8.0})[2]
    assert [task.thinking.budget for task in shared.tasks(plain[:1])] == [4, 8]  # two settings share the budget 4
    assert further_passes(EvalConfig(), {"math": 8.0}) == []


class RolloutPool:
    """Simulates a model that thinks 8 tokens and needs 4 to be correct.

    Samples of environment `fails` fail. With `slow`, every second task's unlimited reasoning takes too long.
    """

    def __init__(self, fails: str = "", *, slow: bool = False) -> None:
        self.tickets: list[Ticket] = []
        self.fails = fails
        self.slow = slow

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        self.tickets.append(ticket)
        task = ticket.task
        if task.env.name == self.fails:
            return group(task, [], failed=samples)
        if self.slow and task.thinking.mode is Mode.UNLIMITED and ticket.number % 2:
            return group(task, [self.said(task)] * (samples - 1), failed=1)
        said = self.said(task)
        at = (replace(task, thinking=up_to(budget)) for budget in task.thinking.nested_budgets if budget < 8)
        closing = as_marks((True,))
        forced = tuple(replace(one, turns=(replace(one.turns[0], injected_T=closing),)) for one in map(self.said, at))
        return Group(ticket=ticket, trajectories=(replace(said, forced_answers=forced),) * samples)

    def said(self, task: Task) -> Trajectory:
        room = {OFF: 0}.get(task.thinking, 8 if task.thinking.budget is None else task.thinking.budget)
        closed = Closed.NONE if task.thinking == OFF else Closed.ITSELF if room >= 8 else Closed.ABRUPT
        return answer(task, room >= 4, turn(min(room, 8), 3, closed))


class ToldEngines(Engines):
    told: RolloutPool

    async def serve(self, model: Path, *, who: str) -> Any:
        return self.told


EVALUATION = single_instance(EVAL, about="rl")


class Tracked(Tracker):
    """A tracker that sends nothing and records its files."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[Path] = []

    def artifact(self, path: Path) -> None:
        self.files.append(path)


def evaluated(tmp_path: Path, *overrides: str, pool: RolloutPool) -> tuple[dict[str, Any], dict[str, float], str]:
    """Evaluate math and code. Return the evaluation file, the metrics row and the screen output."""
    path, screen = done(
        tmp_path, lambda run, config: evaluate(run, config.section(EvalConfig), EVALUATION), *overrides, pool=pool
    )
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert row.key == ("eval-rl", 0)
    return json.loads(path.read_text()), row.values, screen


def done(
    tmp_path: Path, stage: Callable[[Run, Config], Coroutine[Any, Any, Path]], *overrides: str, pool: RolloutPool
) -> tuple[Path, str]:
    """Run a stage on a `RolloutPool`. Return its result and the screen output."""
    model = tmp_path / "model"
    byte_tokenizer().save_pretrained(model)
    (model / "config.json").write_text('{"model_type": "llama"}')
    settings = ["eval.tasks=2", "eval.samples=2", "envs.tool_use.share=0", f"runs_dir={tmp_path}", *overrides]
    config: Config = load_config(Path("configs/demo.yaml"), settings)
    folder, screen = RunDir(tmp_path / "run"), io.StringIO()
    folder.open()
    folder.store(RunState(model=str(model), label="rl"))
    with Progress(stream=screen) as progress:
        run = Run(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=False)
        run.engines = engines = ToldEngines(run, start_learner=None)
        engines.told = pool
        path = asyncio.run(stage(run, config))
    folder.close()
    return path, screen.getvalue()


def test_an_evaluation_under_budgets_leaves_curves_and_keeps_its_results(tmp_path: Path) -> None:
    pool = RolloutPool(fails="tool_use")
    asked = ["eval.budgets=[2]", "eval.budget_shares=[0.5]", "eval.no_thinking=true", "eval.low_effort=true"]
    asked += ["eval.max_failures=1", "envs.code.thinking=false"]
    found, metrics, screen = evaluated(tmp_path, *asked, pool=pool)
    accuracies = {env: result["avg_at_k"] for env, result in found["envs"].items()}
    assert accuracies == {"math": 1.0, "code": 0.0, "tool_use": None}
    assert (found["envs"]["tool_use"]["failures"], found["envs"]["tool_use"]["pass_at_k"]) == (4, None)
    result = found["envs"]["math"]
    assert (result["well_formed"], result["thinking_tokens"], result["answer_tokens"]) == (1.0, 8.0, 3.0)
    assert list(found["curve"]) == ["math"]
    points = [BudgetPoint.read(raw) for raw in found["curve"]["math"]]
    assert [(point.label, point.share, point.accuracy) for point in points] == [
        ("off", None, 0.0),
        ("low_effort", None, 1.0),
        ("budget-2", None, 0.0),
        ("budget-4", 0.5, 1.0),
        ("unlimited", None, 1.0),
    ]
    assert metrics["math/thinking/budget-2/accuracy"] == 0.0
    assert metrics["math/thinking/off/answer_tokens"] == 3.0
    assert metrics["math/thinking/budget-4/thinking_tokens"] == 4.0
    assert math.isnan(metrics["tool_use/avg_at_k"])
    lines = ("thinking off", "low effort", "budgets in tokens: math 2, 4", "no curve for code", "for tool_use: no")
    assert [line for line in lines if line not in screen] == []


def test_an_evaluation_of_what_is_down_ends_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailures, match=r"engine.*'tool_use'.*eval\.max_failures"):
        evaluated(tmp_path, pool=RolloutPool(fails="tool_use"))
    assert not list((tmp_path / "run" / "eval").rglob("*.json"))


def test_sampling_from_what_is_down_ends_with_its_name_and_blames_no_model(tmp_path: Path) -> None:
    async def sampled(run: Run, config: Config) -> Path:
        sampling = RftConfig(tasks=3, samples=2)
        instance = single_instance(RFT)
        return await sample_once(
            run,
            sampling,
            instance.mixture(config, {}),
            instance=instance,
            lines=lambda draw, group: [],
            wanted="right answers",
        )

    with pytest.raises(TooManyFailures, match=r"engine.*'math'.*rft\.max_failures"):
        done(tmp_path, sampled, pool=RolloutPool(fails="math"))


def test_no_row_is_asked_twice_and_fewer_tasks_than_asked_for_are_said(tmp_path: Path) -> None:
    rows = [json.dumps({"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"}) for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    pool = RolloutPool()
    asked = [f"envs.math.data={tmp_path}/rows.jsonl", "eval.tasks=30"]
    found, _, screen = evaluated(tmp_path, *asked, pool=pool)
    held = [ticket.task.key for ticket in pool.tickets if ticket.task.env.name == "math"]
    assert 0 < len(held) == len(set(held)) < 30
    assert (found["envs"]["math"]["tasks"], found["envs"]["math"]["tasks_asked"]) == (len(held), 30)
    assert f"math has {len(held)} of 30 requested held-out tasks" in screen
    assert found["envs"]["code"]["tasks"] == 30
    assert "code has" not in screen


def test_an_evaluation_that_is_done_again_keeps_its_place(tmp_path: Path) -> None:
    results = {"k": 4, "seconds": 1.0, "envs": {}}
    for label in ("init", "sft", "sft", "rl", "rl"):
        order = next_order(tmp_path, label)
        (tmp_path / f"{label}.json").write_text(json.dumps({"label": label, "order": order} | results))
    assert [(one.label, one.order) for one in read_evaluations(tmp_path)] == [("init", 0), ("sft", 1), ("rl", 2)]


def test_every_ticket_has_its_own_number_and_the_first_pass_those_it_always_had(tmp_path: Path) -> None:
    pool = RolloutPool()
    found, _, _ = evaluated(tmp_path, "eval.budgets=[2,8]", "eval.no_thinking=true", pool=pool)
    assert found["sampled_tokens"] == 6 * 2 * (1 + 1) + 6 * 2  # an answer and a forced one at 2, then thinking off
    numbers = [ticket.number for ticket in pool.tickets]
    assert sorted(numbers) == list(range(EVALUATION.first_ticket, EVALUATION.first_ticket + 3 * 2 * 2))
    nested = Thinking(mode=Mode.UNLIMITED, nested_budgets=(2, 8))  # at the budgets, which need no pass
    first = [ticket for ticket in pool.tickets if ticket.task.thinking == nested]
    assert [ticket.number - EVALUATION.first_ticket for ticket in first] == [0, 1, 2, 3, 4, 5]
    assert [ticket.task.env.name for ticket in first] == ["code", "code", "math", "math", "tool_use", "tool_use"]
    passes = [{t.task.key for t in pool.tickets if t.task.thinking == mode} for mode in (nested, OFF)]
    assert passes[0] == passes[1]
    assert {one["budget"]: one["nested"] for one in found["curve"]["math"]} == {2: True, 8: True, None: False}


def test_announced_budgets_have_passes_of_their_own(tmp_path: Path) -> None:
    pool = RolloutPool()
    found, _, _ = evaluated(tmp_path, "eval.budgets=[2,8]", "rollout.thinking.announce=true", pool=pool)
    assert found["sampled_tokens"] == 3 * 6 * 2  # three passes over six tasks, two answers of one sampled token each
    asked = Counter(ticket.task.thinking for ticket in pool.tickets)
    assert asked == {UNLIMITED: 6, up_to(2): 6, up_to(8): 6}
    assert [(one["accuracy"], one["nested"]) for one in found["curve"]["math"]] == [(0, False), (1, False), (1, False)]


def test_failures_without_a_budget_are_none_at_a_budget(tmp_path: Path) -> None:
    pool = RolloutPool(slow=True)
    found, _, _ = evaluated(tmp_path, "eval.budgets=[2,6]", pool=pool)
    points = [BudgetPoint.read(raw) for raw in found["curve"]["math"]]
    expected = [("budget-2", 4, 0), ("budget-6", 4, 0), ("unlimited", 3, 1)]
    assert [(one.label, one.samples, one.failures) for one in points] == expected
    asked = Counter(ticket.task.thinking.budget for ticket in pool.tickets)
    assert asked == {None: 6, 2: 3, 6: 3}  # only the tasks with a failure have a pass


def test_an_evaluation_without_budgets_asks_each_task_once_and_writes_no_curve(tmp_path: Path) -> None:
    pool = RolloutPool()
    found, metrics, _ = evaluated(tmp_path, pool=pool)
    assert len(pool.tickets) == 6
    assert (found["version"], "curve" in found, sorted(found["tasks"])) == (0, False, sorted(found["envs"]))
    assert [(one["right"], one["scored"], one["failed"]) for one in found["tasks"]["math"]] == [(2, 2, 0)] * 2
    assert len({one["key"] for one in found["tasks"]["math"]}) == 2
    assert not [name for name in metrics if "/thinking/" in name]
    assert [path.name for path in (tmp_path / "run" / "trajectories").iterdir()] == ["eval-rl.jsonl"]


def scored(budget: int | None, right: Sequence[int]) -> BudgetPoint:
    """Build a point whose tasks have so many right answers of four."""
    raw: dict[str, Any] = dict.fromkeys(BudgetPoint.__dataclass_fields__, 0) | {"closed": {}, "budget": budget}
    scores = (TaskScore(key=f"{n}", content="", right=one, scored=4) for n, one in enumerate(right))
    return BudgetPoint(**raw | {"mode": Mode.BUDGET if budget else Mode.UNLIMITED, "scores": tuple(scores)})


def curve(free: Sequence[int], **at: Sequence[int]) -> list[BudgetPoint]:
    return [scored(None, free), *(scored(int(name[1:]), right) for name, right in at.items())]


GOOD, POOR = [4, 2] * 50, [4, 1] * 50
"""Right answers of 100 tasks: three quarters, and five eighths."""


def test_the_least_budget_and_all_larger_ones_keep_the_accuracy() -> None:
    math, code = curve(GOOD, b4=GOOD, b8=POOR, b16=GOOD, b32=GOOD), curve(GOOD, b8=GOOD, b16=GOOD, b32=GOOD)
    assert budget_for_accuracy({"code": code}, 0.95) == 8
    assert budget_for_accuracy({"math": math}, 0.95) == 16  # a smaller one is better by luck
    assert budget_for_accuracy({"math": math, "code": code}, 0.75) == 8
    assert budget_for_accuracy({"math": math, "code": curve(GOOD, b8=GOOD, b64=POOR)}, 0.95) is None
    assert budget_for_accuracy({}, 0.5) is None


def test_a_budget_that_only_seems_to_keep_the_accuracy_is_refused() -> None:
    """The same mean, from tasks that differ by all their answers, or from too few tasks."""
    assert budget_for_accuracy({"math": curve([4, 0] * 50, b8=[0, 4] * 50)}, 0.95) is None
    assert budget_for_accuracy({"math": curve(GOOD[:10], b8=GOOD[:10])}, 0.95) is None
    assert budget_for_accuracy({"math": curve([0] * 100, b8=[0] * 100)}, 0.95) is None
