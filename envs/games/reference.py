"""Winning and losing paths in a game with known dynamics: the shortest win, and variants that miss it."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.games.actions import parse_action
from temper.envs.games.tasks import act, begin_of, view

Dynamics = Mapping[Any, Mapping[int, Sequence[tuple[float, Any, float, bool]]]]
"""The dynamics of gymnasium's toy games: state, action, and the outcomes (probability, next state, reward, end)."""


def reference(task: Task) -> list[str]:
    game, _ = begin_of(task)
    toy: Any = game.unwrapped
    game.close()
    if not hasattr(toy, "P"):
        raise ValueError(f"{task.env.options['id']} has no known dynamics")
    return [f"\\boxed{{{task.env.options['actions'][action]}}}" for action in shortest_win(toy.P, toy.s)]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right = reference(task)
    yield "last action missing", right[:-1] or [""]
    yield "first action missing", right[1:] or [""]
    yield "no action named", ["hm"] * len(right)


def demonstrate(task: Task) -> list[Message]:
    game, _ = begin_of(task)
    messages: list[Message] = []
    for answer in reference(task):
        action = parse_action(answer, game.action_space, task.env.options["actions"])
        assert action is not None
        observation, *_ = act(game, action)
        messages.append({"role": "assistant", "reasoning_content": "", "content": answer})
        messages.append({"role": "user", "content": view(game, task.env.options, observation)})
    game.close()
    return messages[:-1]


def shortest_win(dynamics: Dynamics, start: Any) -> list[int]:
    """Return the fewest actions from the start to the end with the highest reward (breadth-first search).

    Raise `ValueError` if an action has several outcomes, or that end is unreachable.
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
        raise ValueError("this game is random: no plan wins it for certain")
    ((_, reached, reward, ended),) = outcomes
    return reached, reward, ended
