"""Any environment of gymnasium with a finite number of actions, played in text: one action a turn.

Options (all but `id` have defaults): `id` (gymnasium's), `kwargs` (for `gymnasium.make`), `actions` (their names),
`rules` (what the model is told), `frame` (`ansi`, the drawing that the environment makes, or `text`), `max_steps` (turns
until the game is cut off), `success` (the game is won where it has ended by itself and its rewards sum to more) and `idle`
(the reward of a turn without an action: 0 or less; else as `known_games` says, or the first reward of a game if below 0).

The action is what the last `\\boxed{}` names, else the last name of an action in the answer; letter case is ignored. A
turn that names none changes nothing and is told so. Parts: `correct` (won or not), `return` (the sum of the rewards) and
`bad_actions` (the share of turns that named no action). A game that is cut off counts its remaining turns as turns without an
action, so that where moves cost something a limit is no way out.
"""

import dataclasses
import random
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium

from envs.core.bounds import only_known
from envs.core.definition import PARTS, EnvDefinition
from envs.core.errors import EnvironmentFault
from envs.core.step_result import StepResult
from envs.core.task import Message, Task
from envs.core.turn_text import ParsedTurn
from envs.games.known_games import GAMES, Game, drawing
from envs.games.plan import shortest_win
from envs.task_env import TaskEnv
from rewards.answers import boxes
from rewards.verdict import Verdict, share_of, verdict

ENV = "gym"
NUMBERS = 1_000_000
RETURN, BAD_ACTIONS = "return", "bad_actions"
PROMPT = """{rules}
One action a turn. The actions are: {actions}. Put your action in \\boxed{{}}.
Game {number}. {view}"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GymOptions:
    """Which game is played, and how it is shown. What is None is as `known_games` says, or the environment itself."""

    id: str
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    actions: list[str] | None = None
    rules: str | None = None
    frame: str | None = None
    max_steps: int | None = None
    success: float | None = None
    idle: float | None = None


class GymEnv(TaskEnv):
    """Plays one game; its number is its seed."""

    env_id = ENV
    game: "gymnasium.Env[Any, Any] | None" = None

    def draw(self, rng: random.Random) -> Task:
        return generate(rng, 1, spec=DEFAULT)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Raises `EnvironmentFault` where the game does not begin as the task says."""
        observation = super().reset(seed=seed, options=options)
        assert self.task is not None
        self.close()
        self.game, first = begin(self.task.spec)
        self.total, self.bad, self.played = 0.0, 0, 0
        if prompt(self.task.spec, first) != self.task.messages[0]["content"]:
            raise EnvironmentFault(f"{self.task.spec['id']} does not begin as it did when the task was made: {first!r}")
        return observation

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        assert self.game is not None
        ended = cut = False
        self.played += 1
        action = action_of(parsed.answer, task.spec["actions"])
        if action is None:
            self.bad += 1
            self.total += task.spec["idle"]
            seen = f"error: no action named; the actions are {', '.join(task.spec['actions'])}"
        else:
            start = int(getattr(self.game.action_space, "start", 0))
            observation, reward, ended, cut, _ = self.game.step(start + action)
            self.total += float(reward)
            seen = view(self.game, task.spec, observation)
        if ended:
            return self.end(self._judged(self.total, won=self.total > task.spec["success"]))
        if cut or self.turns >= task.spec["max_turns"]:
            return self.cut(f"after {self.turns} turns")
        return self.go_on([{"role": "user", "content": seen}])

    def standing(self, task: Task) -> Verdict:
        """The rewards so far, and those of doing nothing in the turns that are left."""
        left = max(0, task.spec["max_turns"] - self.played)
        return self._judged(self.total + left * task.spec["idle"], won=False)

    def _judged(self, total: float, *, won: bool) -> Verdict:
        judged = verdict(won, detail=f"return {total:g}")
        parts = judged.parts | {RETURN: total, BAD_ACTIONS: share_of(self.bad, self.turns)}
        return dataclasses.replace(judged, parts=parts)

    def close(self) -> None:
        if self.game is not None:
            self.game.close()
            self.game = None


def begin(spec: Mapping[str, Any]) -> "tuple[gymnasium.Env[Any, Any], str]":
    """The game, and its first view."""
    mode = "ansi" if spec["frame"] == "ansi" else None
    game = gymnasium.make(spec["id"], render_mode=mode, disable_env_checker=True, **spec["kwargs"])
    observation, _ = game.reset(seed=spec["seed"])
    return game, view(game, spec, observation)


def view(game: "gymnasium.Env[Any, Any]", spec: Mapping[str, Any], observation: Any) -> str:
    """What the model sees: the observation in words, and the drawing where there is one."""
    words = _known(spec["id"]).words(observation, game.unwrapped)
    return f"{words}\n{drawing(str(game.render()))}" if spec["frame"] == "ansi" else words


def prompt(spec: Mapping[str, Any], first: str) -> str:
    """The whole prompt."""
    actions = ", ".join(spec["actions"])
    return PROMPT.format(rules=spec["rules"], actions=actions, number=spec["seed"], view=first).strip()


def action_of(answer: str, actions: list[str]) -> int | None:
    """The number of the action that the answer names by the rule above; None where it names none."""
    numbers = {name.lower(): number for number, name in enumerate(actions)}
    boxed = boxes(answer)
    if boxed:
        return numbers.get(boxed[-1].lower())
    named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, actions))})(?!\w)", answer, re.IGNORECASE)
    return numbers[named[-1].lower()] if named else None


def generate(rng: random.Random, level: int, *, spec: Mapping[str, Any]) -> Task:
    """A game of this kind with a number of its own; its key is set by the source."""
    if level != 1:
        raise ValueError(f"{ENV} has level 1 only, not {level}; options.kwargs makes a game harder")
    numbered = dict(spec) | {"seed": rng.randrange(NUMBERS)}
    game, first = begin(numbered)
    game.close()
    messages = ({"role": "user", "content": prompt(numbered, first)},)
    return Task(env=ENV, key="generated", messages=messages, spec=numbered)


def gold(task: Task) -> list[str]:
    """The shortest way to win; ValueError where the game gives no dynamics, or leaves something to chance."""
    game, _ = begin(task.spec)
    toy: Any = game.unwrapped
    game.close()
    if not hasattr(toy, "P"):
        raise ValueError(f"{task.spec['id']} gives no dynamics to plan with")
    return [f"\\boxed{{{task.spec['actions'][action]}}}" for action in shortest_win(toy.P, toy.s)]


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Ways not to win."""
    right = gold(task)
    yield "last action missing", right[:-1] or [""]
    yield "first action missing", right[1:] or [""]
    yield "no action named", ["hm"] * len(right)


def demonstrate(task: Task) -> list[Message]:
    """The shortest way to win, with what is seen on it."""
    game, _ = begin(task.spec)
    messages: list[Message] = []
    for said in gold(task):
        action = action_of(said, task.spec["actions"])
        assert action is not None
        observation, *_ = game.step(int(getattr(game.action_space, "start", 0)) + action)
        messages.append({"role": "assistant", "reasoning_content": "", "content": said})
        messages.append({"role": "user", "content": view(game, task.spec, observation)})
    game.close()
    return messages[:-1]


def _known(game_id: str) -> Game:
    return GAMES.get(gymnasium.spec(game_id).name, Game())


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    """The environment that plays the game of these options; ValueError for wrong ones."""
    return _definition(_spec(options) if options else DEFAULT)


def _spec(options: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(GymOptions)]
    only_known(options, known, "options")
    if not isinstance(options.get("id"), str):
        raise ValueError("options.id must be the name of a game that gymnasium knows, for example FrozenLake-v1")
    given = GymOptions(**options)
    if not isinstance(given.kwargs, Mapping):
        raise ValueError(f"options.kwargs is {given.kwargs!r}; it must be a mapping")
    try:
        game = gymnasium.make(given.id, disable_env_checker=True, **given.kwargs)
    except Exception as error:
        raise ValueError(f"options: gymnasium can't make {given.id!r} with {dict(given.kwargs)}: {error}") from error
    modes, space, about = game.metadata.get("render_modes", []), game.action_space, _known(given.id)
    idle = given.idle if given.idle is not None else _idle(game, about)
    game.close()
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ValueError(f"options.id: the actions of {given.id} are {space}, they must be Discrete")
    count = int(space.n)
    actions = given.actions or list(about.actions) or [str(number) for number in range(count)]
    frame = given.frame or ("ansi" if "ansi" in modes else "text")
    max_steps = about.max_steps if given.max_steps is None else given.max_steps
    success = about.success if given.success is None else given.success
    if not _names(actions, count):
        raise ValueError(f"options.actions is {actions!r}; {given.id} needs {count} different names")
    if frame not in ("text", "ansi") or (frame == "ansi" and "ansi" not in modes):
        raise ValueError(f"options.frame is {frame!r}; {given.id} has text{', ansi' if 'ansi' in modes else ''}")
    if not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"options.max_steps is {max_steps!r}; it must be 1 or more")
    if not isinstance(success, int | float):
        raise ValueError(f"options.success is {success!r}; it must be a number")
    if not isinstance(idle, int | float) or idle > 0:
        raise ValueError(f"options.idle is {idle!r}; it must be a number, 0 or less")
    return {
        "id": given.id,
        "kwargs": dict(given.kwargs),
        "actions": actions,
        "rules": about.rules if given.rules is None else given.rules,
        "frame": frame,
        "max_turns": max_steps,
        "success": float(success),
        "idle": float(idle),
    }


def _idle(game: "gymnasium.Env[Any, Any]", about: Game) -> float:
    """What a turn without an action costs: what is known of the game, else what its first step costs."""
    if about.idle is not None:
        return about.idle
    game.reset(seed=0)
    game.action_space.seed(0)
    return min(0.0, float(game.step(game.action_space.sample())[1]))


def _names(actions: Any, count: int) -> bool:
    """Whether these are so many names that can be told apart."""
    texts = isinstance(actions, list) and all(isinstance(name, str) and name.strip() for name in actions)
    return texts and len(actions) == count == len({name.lower() for name in actions})


def _definition(spec: dict[str, Any]) -> EnvDefinition:
    make = partial(generate, spec=spec)
    try:
        planned = bool(gold(make(random.Random(0), 1)))
    except ValueError:
        planned = False
    return EnvDefinition(
        id=ENV,
        entry_point="envs.games.env:GymEnv",
        generate=make,
        demonstrate=demonstrate if planned else None,
        gold=gold if planned else None,
        corruptions=corruptions if planned else None,
        configure=configure,
        parts=(*PARTS, RETURN, BAD_ACTIONS),
        max_turns=spec["max_turns"],
    )


DEFAULT = _spec({"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}})
ENVIRONMENT = _definition(DEFAULT)
