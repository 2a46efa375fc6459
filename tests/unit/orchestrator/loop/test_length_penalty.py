"""The penalty of thinking tokens: its rise and fall, and its state."""

import pytest
from support.turns import turn_of

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED, Thinking
from temper.orchestrator.loop.length_penalty import AdaptivePenalty, EnvPenalty
from temper.rollout.codec import from_json, to_json
from temper.rollout.trajectory import Closed, Group, Stop, ThinkingStats, Ticket, Trajectory, WeightVersion


def answers(
    right: int, *, of: int = 10, env: str = "math", thinking: Thinking = UNLIMITED, thinking_tokens: int = 20
) -> Group:
    task = Task(env=EnvRef(name=env), messages=({"role": "user", "content": "?"},), spec={}, thinking=thinking)
    thought = ThinkingStats(tokens=thinking_tokens, answer_tokens=1, closed=Closed.ITSELF)
    made = (
        Trajectory(task=task, turns=(turn_of([5], thinking=thought),), stop=Stop.ENV, reward=float(n < right))
        for n in range(of)
    )
    return Group(ticket=Ticket(number=0, task=task, admitted=WeightVersion(step=0)), trajectories=tuple(made))


def test_a_penalty_rises_while_the_accuracy_stays_and_falls_below_its_bound() -> None:
    penalty = AdaptivePenalty(0.1, step=1.0)
    for _ in range(3):
        assert penalty.add([answers(8)]).keys() == {"env/math/length_penalty"}
    assert penalty.of("math").penalty == pytest.approx(3 * 1.0 * 0.1)
    penalty.add([answers(0)])  # the running mean falls to 0.64, 0.06 below 0.8 - 0.1
    assert penalty.of("math").penalty == pytest.approx(0.3 - 1.0 * 0.06)
    for _ in range(20):
        penalty.add([answers(0)])
    assert penalty.of("math").penalty == 0.0


@pytest.mark.parametrize("scale", [1, 100])
def test_the_loss_of_an_answer_is_relative_and_bounded(scale: int) -> None:
    """50 tokens or 5,000: an answer of the first step's mean length loses the penalty, and none loses more than 0.5."""
    penalty = AdaptivePenalty(0.02, step=1.0)
    for step in range(100):
        penalty.add([answers(6, thinking_tokens=50 * scale if step == 0 else 10)])
        found = penalty.of("math")
        assert found.loss(25 * scale) == pytest.approx(min(0.02 * (step + 1), 0.5) / 2)
        assert found.loss(5000 * scale) <= 0.5
    assert found.loss(50 * scale) == 0.5


def test_only_unlimited_thinking_counts() -> None:
    penalty = AdaptivePenalty(0.1, step=1.0)
    penalty.add([answers(8), answers(0, thinking=OFF)])
    assert penalty.state()["math"].accuracy == pytest.approx(0.8)
    assert penalty.add([answers(0, thinking=OFF)]) == {}


def test_environments_have_their_own_penalties_and_a_resumed_run_the_same_ones() -> None:
    steps = [[answers(5), answers(9, env="code")], [answers(4, env="code")], [answers(7)]]
    through, first, resumed = (AdaptivePenalty(0.05, step=1.0) for _ in range(3))
    logged = [through.add(groups) for groups in steps]
    assert set(logged[1]) == {"env/code/length_penalty"}
    for groups in steps[:2]:
        first.add(groups)
    resumed.restore(from_json(dict[str, EnvPenalty], to_json(first.state())))
    resumed.add(steps[2])
    assert [resumed.of(env) for env in ("math", "code")] == [through.of(env) for env in ("math", "code")]
    assert through.of("math").penalty != through.of("code").penalty


def test_without_a_margin_there_is_no_penalty() -> None:
    penalty = AdaptivePenalty(None, step=1.0)
    assert penalty.add([answers(10)]) == {}
    assert penalty.of("math").loss(100) == 0.0
