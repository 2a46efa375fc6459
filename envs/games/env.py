"""Any gymnasium environment with textual actions, played in text: one action a turn.

`options` documents the options, `actions` the rule that extracts an action. A turn without an action changes nothing and
gets a note. Parts: `correct` (won or not), `return` (the sum of the rewards) and `bad_actions` (the share of turns without
an action). A truncated game counts its remaining turns as turns without an action, so that costly moves can't be avoided by
stalling.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.games.actions import parse_action
from temper.envs.games.known_games import GymGame
from temper.envs.games.options import game_options
from temper.envs.games.tasks import (
    act,
    begin_of,
    demonstrate,
    describe_actions,
    generate,
    negatives,
    prompt,
    reference,
    view,
)
from temper.envs.task_env import TaskEnv
from temper.rewards.score import Score, binary_score, error_rate

RETURN, BAD_ACTIONS = "return", "bad_actions"
CHANCE = 0.5
"""Highest mean reward of one fixed list of actions: a short path often fits a small lake."""


class GymEnv(TaskEnv):
    """One game. Its number is its seed."""

    game: GymGame | None = None

    def begin(self, task: Task) -> None:
        self.close()
        self.game, first = begin_of(task)
        self.total, self.bad, self.played = 0.0, 0, 0
        kind = task.env.options
        if prompt(kind, first) != task.messages[0]["content"]:
            raise EnvironmentFault(f"{kind['id']} does not begin as it did when the task was made: {first!r}")

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        assert self.game is not None
        kind = task.env.options
        ended = cut = False
        self.played += 1
        action = parse_action(parsed.answer, self.game.action_space, kind["actions"])
        if action is None:
            self.bad += 1
            self.total += kind["idle"]
            seen = f"error: no action given. {describe_actions(kind)}"
        else:
            observation, reward, ended, cut = act(self.game, action)
            self.total += reward
            seen = view(self.game, kind, observation)
        if ended:
            return self.end(self._judged(self.total, won=self.total > kind["success"]))
        if cut or self.is_last(task):
            return self.truncate(f"after {self.turns} turns")
        return self.continue_with([{"role": "user", "content": seen}])

    def score_so_far(self, task: Task) -> Score:
        """Score the rewards so far, plus those of idling in the remaining turns."""
        limit = task.env.settings.max_turns
        assert limit is not None, "the definition of a game says how long it goes on"
        left = max(0, limit - self.played)
        return self._judged(self.total + left * task.env.options["idle"], won=False)

    def _judged(self, total: float, *, won: bool) -> Score:
        score = binary_score(won, detail=f"return {total:g}")
        return score.with_parts({RETURN: total, BAD_ACTIONS: error_rate(self.bad, self.turns)})

    def close(self) -> None:
        if self.game is not None:
            self.game.close()
            self.game = None
        super().close()


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    return _definition(game_options(options) if options else DEFAULT)


def _definition(options: dict[str, Any]) -> EnvDefinition:
    make = partial(generate, options=options)
    game = EnvDefinition(
        id="gym",
        entry_point="temper.envs.games.env:GymEnv",
        generate=make,
        levels=1,
        options=options,
        configure=configure,
        parts=(*PARTS, RETURN, BAD_ACTIONS),
        max_turns=options["max_steps"],
        chance=CHANCE,
    )
    try:
        reference(replace(make(random.Random(0), 1), env=game.ref()))
    except ValueError:  # there is no known way to win
        return game
    return replace(game, demonstrate=demonstrate, reference=reference, negatives=negatives)


DEFAULT = game_options({"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}})
ENVIRONMENT = _definition(DEFAULT)
