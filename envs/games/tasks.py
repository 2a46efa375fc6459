"""Games as tasks: the first observation, the prompt, and winning and losing paths if the dynamics are known."""

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium

from temper.envs.core.task import Message, Task
from temper.envs.data.split import digest
from temper.envs.games.actions import parse_action
from temper.envs.games.known_games import GymGame, drawing, known_game

NUMBERS = 1_000_000
Dynamics = Mapping[Any, Mapping[int, Sequence[tuple[float, Any, float, bool]]]]
"""The dynamics of gymnasium's toy games: state, action, and the outcomes (probability, next state, reward, end)."""
PROMPT = """{rules}
One action a turn. {actions}. Put your action in \\boxed{{}}.
{view}"""


def begin(options: Mapping[str, Any], number: int) -> tuple[GymGame, str]:
    kwargs = dict(known_game(options["id"]).laid_out(number, options["kwargs"]))
    if options["frame"] == "ansi":
        kwargs["render_mode"] = "ansi"
    game = gymnasium.make(options["id"], disable_env_checker=True, **kwargs)
    observation, _ = game.reset(seed=number)
    return game, view(game, options, observation)


def begin_of(task: Task) -> tuple[GymGame, str]:
    return begin(task.env.options, task.spec["number"])


def view(game: GymGame, options: Mapping[str, Any], observation: Any) -> str:
    words = known_game(options["id"]).words(observation, game.unwrapped)
    return f"{words}\n{drawing(str(game.render()))}" if options["frame"] == "ansi" else words


def act(game: GymGame, action: Any) -> tuple[Any, float, bool, bool]:
    observation, reward, ended, cut, _ = game.step(action)
    return observation, float(reward), ended, cut


def describe_actions(options: Mapping[str, Any]) -> str:
    """Return a sentence, without its full stop, about the actions."""
    names = options["actions"]
    return f"The actions are: {', '.join(names)}" if names else f"An action is {options['form']}"


def prompt(options: Mapping[str, Any], first: str) -> str:
    """Return the prompt of a game. Games with the same start share one prompt, on one side of the split."""
    return PROMPT.format(rules=options["rules"], actions=describe_actions(options), view=first).strip()


def generate(rng: random.Random, level: int, *, options: Mapping[str, Any]) -> Task:
    number = rng.randrange(NUMBERS)
    game, first = begin(options, number)
    dynamics = repr(getattr(game.unwrapped, "P", None))
    game.close()
    messages = ({"role": "user", "content": prompt(options, first)},)
    return Task(messages=messages, spec={"number": number}, key=digest([messages, dynamics])[:16])


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
