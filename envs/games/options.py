"""The options of a game: which one, and how it is shown.

`id` (gymnasium's) is required. The others have defaults: `kwargs` (for `gymnasium.make`), `actions` (names of discrete
ones), `rules` (text for the model), `frame` (`ansi` for the environment's drawing, or `text`), `max_steps` (turns before
truncation), `success` (a game that ends by itself with a higher sum of rewards is won) and `idle` (the reward of a turn
without an action, 0 or less. The default is the one of `known_games`, or the first reward of a game if it is below 0).
"""

from collections.abc import Mapping
from typing import Any

import gymnasium

from temper.envs.core.bounds import require_int, require_known, require_type
from temper.envs.games.actions import describe_space
from temper.envs.games.known_games import Game, GymGame, known_game

KNOWN = ("id", "kwargs", "actions", "rules", "frame", "max_steps", "success", "idle")


def game_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete options of a game. Raise `ValueError` for wrong ones."""
    require_known(options, KNOWN, "options")
    name, kwargs = options.get("id"), options.get("kwargs", {})
    if not isinstance(name, str):
        raise ValueError("options.id must be a gymnasium id, for example FrozenLake-v1")
    game = _made(name, kwargs)
    modes, space, about = game.metadata.get("render_modes", []), game.action_space, known_game(name)
    given = {key: value for key, value in options.items() if value is not None}
    idle = given["idle"] if "idle" in given else _idle(game, about)
    game.close()
    try:
        form = describe_space(space)
    except ValueError as error:
        raise ValueError(f"options.id: {name}: {error}") from error
    count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
    usual = (list(about.actions) if count else []) or [str(number) for number in range(count)]
    actions = given.get("actions") or usual
    frame = given.get("frame") or ("ansi" if "ansi" in modes else "text")
    max_steps, success = given.get("max_steps", about.max_steps), given.get("success", about.success)
    if actions and not count:
        raise ValueError(f"options.actions is {actions!r}; {name} has unnamed actions ({form}); remove it")
    if not _names(actions, count):
        raise ValueError(f"options.actions is {actions!r}; {name} needs {count} different names")
    if frame not in ("text", "ansi") or (frame == "ansi" and "ansi" not in modes):
        raise ValueError(f"options.frame is {frame!r}; {name} has text{', ansi' if 'ansi' in modes else ''}")
    rules = given.get("rules", about.rules)
    require_type("options.rules", rules, str)
    require_int("options.max_steps", max_steps, least=1)
    require_type("options.success", success, float)
    require_type("options.idle", idle, float)
    if idle > 0:
        raise ValueError(f"options.idle is {idle!r}; set a number of 0 or less")
    return {
        "id": name,
        "kwargs": dict(kwargs),
        "actions": actions,
        "form": form,
        "rules": rules,
        "frame": frame,
        "max_steps": max_steps,
        "success": float(success),
        "idle": float(idle),
    }


def _made(name: str, kwargs: Any) -> GymGame:
    require_type("options.kwargs", kwargs, Mapping)
    try:
        return gymnasium.make(name, disable_env_checker=True, **kwargs)
    except Exception as error:
        raise ValueError(f"options: gymnasium can't make {name!r} with {dict(kwargs)}: {error}") from error


def _idle(game: GymGame, about: Game) -> float:
    if about.idle is not None:
        return about.idle
    game.reset(seed=0)
    game.action_space.seed(0)
    return min(0.0, float(game.step(game.action_space.sample())[1]))


def _names(actions: Any, count: int) -> bool:
    texts = isinstance(actions, list) and all(isinstance(name, str) and name.strip() for name in actions)
    return texts and len(actions) == count == len({name.lower() for name in actions})
