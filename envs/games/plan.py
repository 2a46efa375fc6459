"""The shortest way to win a game whose dynamics are known and leave nothing to chance."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

Dynamics = Mapping[Any, Mapping[int, Sequence[tuple[float, Any, float, bool]]]]
"""As in gymnasium's toy games: state, action, and the outcomes (probability, next state, reward, whether it ends)."""


def shortest_win(dynamics: Dynamics, start: Any) -> list[int]:
    """The fewest actions from the start to the end with the highest reward (breadth-first search).

    ValueError where an action has several outcomes, or that end can't be reached.
    """
    moves = {state: {action: _only(outcomes) for action, outcomes in by.items()} for state, by in dynamics.items()}
    ends = [reward for by in moves.values() for _, reward, ended in by.values() if ended]
    best = max(ends, default=0.0)
    paths: dict[Any, list[int]] = {start: []}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        for action, (reached, reward, ended) in moves[state].items():
            if ended and reward == best:
                return [*paths[state], action]
            if not ended and reached not in paths:
                paths[reached] = [*paths[state], action]
                waiting.append(reached)
    raise ValueError("this game can't be won")


def _only(outcomes: Sequence[tuple[float, Any, float, bool]]) -> tuple[Any, float, bool]:
    if len(outcomes) != 1:
        raise ValueError("this game leaves the outcome of an action to chance: no plan is sure to win it")
    ((_, reached, reward, ended),) = outcomes
    return reached, reward, ended
