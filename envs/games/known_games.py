"""The known gymnasium games: their rules as text, actions, observations and win conditions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

GymGame = gymnasium.Env[Any, Any]
MOVES = ("left", "down", "right", "up")
COLOURED = re.compile(r"(?:\x1b\[[0-9;]*m)+(.*?)(?:\x1b\[0m)+", re.DOTALL)
STANDS = ("at red", "at green", "at yellow", "at blue", "in the taxi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """The description of a game. The defaults apply to an unknown game."""

    rules: str = ""
    actions: tuple[str, ...] = ()
    """Names in the order of the action numbers. Empty uses the numbers."""
    words: Callable[[Any, Any], str] = field(default=lambda observation, _game: values(observation))
    """Returns an observation as text, given the observation and the unwrapped environment."""
    success: float = 0.0
    """The game is won if the sum of its rewards exceeds this."""
    max_steps: int = 64
    laid_out: Callable[[int, Mapping[str, Any]], Mapping[str, Any]] = field(default=lambda _number, kwargs: kwargs)
    """Returns the keyword arguments of a numbered game from those of the options."""
    idle: float | None = None
    """The reward of a turn without an action. None uses the first reward of a game if it is below 0."""


def values(observation: Any) -> str:
    """Write an observation: text unchanged, a dictionary by its keys, numbers with four digits."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {values(inner)}" for key, inner in observation.items())
    return numpy.array2string(numpy.asarray(observation), precision=4, separator=", ", threshold=256)


def drawing(text: str) -> str:
    """Remove the colours from a terminal drawing. Coloured text gets brackets."""
    return COLOURED.sub(r"[\1]", text).strip("\n")


def _cell(columns: int) -> Callable[[Any, Any], str]:
    return lambda observation, _game: _place("You are", int(observation) // columns, int(observation) % columns)


def _lake(observation: Any, game: Any) -> str:
    return _cell(int(game.ncol))(observation, game)


def _place(who: str, row: int, column: int) -> str:
    return f"{who} in row {row}, column {column}."


def _taxi(observation: Any, game: Any) -> str:
    row, column, passenger, destination = game.decode(int(observation))
    stand = STANDS[destination].removeprefix("at ")
    return f"{_place('The taxi is', row, column)} The passenger is {STANDS[passenger]} and wants to get to {stand}."


def _cards(observation: Any, _game: Any) -> str:
    total, dealer, ace = observation
    return f"Your cards: {total}{', with an ace that counts 11' if ace else ''}. The dealer shows {dealer}."


def _random_lake(size: int, frozen: float) -> Callable[[int, Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function for the map of a lake of this size with a share of frozen cells, unless the options set a map."""

    def laid_out(number: int, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if {"desc", "map_name"} & {*kwargs}:
            return kwargs
        return {**kwargs, "desc": generate_random_map(size, frozen, number)}

    return laid_out


LAKE = Game(
    rules=(
        "Cross the frozen lake from the start (S) to the goal (G) over the frozen cells (F); a hole (H) ends the game. "
        "Row 0 is at the top, column 0 at the left."
    ),
    actions=MOVES,
    words=_lake,
    idle=0.0,
    laid_out=_random_lake(4, 0.6),
)
CLIFF = Game(
    rules=(
        "Walk from the lower left corner (row 3, column 0) to the lower right one (T: row 3, column 11). Between them, "
        "in row 3, is the cliff (C): who steps into it is back at the start and has lost. Row 0 is at the top."
    ),
    actions=("up", "right", "down", "left"),
    words=_cell(12),
    success=-100.0,
    idle=-1.0,
)
TAXI = Game(
    rules=(
        "Drive the taxi to the passenger, pick the passenger up, drive to the destination and drop the passenger off, "
        "with few moves. The stands: red is row 0, column 0; green row 0, column 4; yellow row 4, column 0; blue "
        "row 4, column 3. A wall | can't be crossed."
    ),
    actions=("south", "north", "east", "west", "pickup", "dropoff"),
    words=_taxi,
    idle=-1.0,
)
CARDS = Game(
    rules=(
        "Blackjack: come nearer to 21 than the dealer, without going over it. Hit takes a card; stick ends your turn, "
        "and the dealer draws up to 17."
    ),
    actions=("stick", "hit"),
    words=_cards,
    idle=0.0,
)
GAMES = {
    "FrozenLake": LAKE,
    "FrozenLake8x8": replace(LAKE, laid_out=_random_lake(8, 0.8)),
    "CliffWalking": CLIFF,
    "CliffWalkingSlippery": CLIFF,
    "Taxi": TAXI,
    "Blackjack": CARDS,
}


def known_game(game_id: str) -> Game:
    return GAMES.get(gymnasium.spec(game_id).name, Game())
