"""The options of a game: which one is played, and how it is shown.

All but `id` have defaults: `id` (gymnasium's), `kwargs` (for `gymnasium.make`), `actions` (names of discrete ones), `rules`
(text for the model), `frame` (`ansi`, the drawing that the environment makes, or `text`), `max_steps` (turns until the game
is cut off), `success` (the game is won if it has ended by itself and its rewards sum to more) and `idle` (the reward of a
turn without an action: 0 or less, else as in `known_games`, or the first reward of a game if below 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import gymnasium

from temper.envs.core.bounds import only_known, whole
from temper.envs.games.actions import described
from temper.envs.games.known_games import Game, GymGame, known_game

Frame = Literal["text", "ansi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GymOptions:
    """Which game is played, and how it is shown. What is None is as `known_games` says, or the environment itself."""

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    actions: list[str] | None = None
    rules: str | None = None
    frame: Frame | None = None
    max_steps: int | None = None
    success: float | None = None
    idle: float | None = None


def game_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a game, all of them said. Raise `ValueError` for wrong ones."""
    known = [option.name for option in fields(GymOptions)]
    only_known(options, known, "options")
    if not isinstance(options.get("id"), str):
        raise ValueError("options.id must be the name of a game that gymnasium knows, for example FrozenLake-v1")
    given = GymOptions(**options)
    game = _made(given)
    modes, space, about = game.metadata.get("render_modes", []), game.action_space, known_game(given.id)
    idle = given.idle if given.idle is not None else _idle(game, about)
    game.close()
    try:
        form = described(space)
    except ValueError as error:
        raise ValueError(f"options.id: {given.id}: {error}") from error
    count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
    actions = given.actions or (list(about.actions) if count else []) or [str(number) for number in range(count)]
    frame = given.frame or ("ansi" if "ansi" in modes else "text")
    max_steps = about.max_steps if given.max_steps is None else given.max_steps
    success = about.success if given.success is None else given.success
    if actions and not count:
        raise ValueError(f"options.actions is {actions!r}; actions of {given.id} have no names: each is {form}")
    if not _names(actions, count):
        raise ValueError(f"options.actions is {actions!r}; {given.id} needs {count} different names")
    if frame not in get_args(Frame) or (frame == "ansi" and "ansi" not in modes):
        raise ValueError(f"options.frame is {frame!r}; {given.id} has text{', ansi' if 'ansi' in modes else ''}")
    _check_numbers(max_steps=max_steps, success=success, idle=idle)
    return {
        "id": given.id,
        "kwargs": dict(given.kwargs),
        "actions": actions,
        "form": form,
        "rules": about.rules if given.rules is None else given.rules,
        "frame": frame,
        "max_steps": max_steps,
        "success": float(success),
        "idle": float(idle),
    }


def _made(options: GymOptions) -> GymGame:
    """Make the game. Raise `ValueError` where gymnasium can't."""
    if not isinstance(options.kwargs, Mapping):
        raise ValueError(f"options.kwargs is {options.kwargs!r}; it must be a mapping")
    try:
        return gymnasium.make(options.id, disable_env_checker=True, **options.kwargs)
    except Exception as error:
        raise ValueError(
            f"options: gymnasium can't make {options.id!r} with {dict(options.kwargs)}: {error}"
        ) from error


def _check_numbers(*, max_steps: int, success: float, idle: float) -> None:
    whole("options.max_steps", max_steps, least=1)
    if not isinstance(success, int | float):
        raise ValueError(f"options.success is {success!r}; it must be a number")
    if not isinstance(idle, int | float) or idle > 0:
        raise ValueError(f"options.idle is {idle!r}; it must be a number, 0 or less")


def _idle(game: GymGame, about: Game) -> float:
    """Return the cost of a turn without an action: the known one of the game, else that of its first step."""
    if about.idle is not None:
        return about.idle
    game.reset(seed=0)
    game.action_space.seed(0)
    return min(0.0, float(game.step(game.action_space.sample())[1]))


def _names(actions: Any, count: int) -> bool:
    texts = isinstance(actions, list) and all(isinstance(name, str) and name.strip() for name in actions)
    return texts and len(actions) == count == len({name.lower() for name in actions})
