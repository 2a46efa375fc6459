"""An environment under the name and with the settings that a run gives to it: bound once, used everywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from temper.envs.catalog import ENVIRONMENTS, configured
from temper.envs.core.bounds import not_negative, only_known, positive
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.functions import named_function
from temper.envs.core.setting import free, immutable, scheduled
from temper.envs.core.task import DEFAULT_TURNS, THREADS, Credit, EnvRef, EnvSettings, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.data.config import DataConfig, OnError
from temper.envs.data.overlap import DropOverlap
from temper.envs.data.split import ReadRows, SplitConfig
from temper.envs.questions import rows
from temper.envs.tools.shared_tools import RUN_PROGRAMS, TIMEOUT_S, shared_tools
from temper.envs.tools.text_tool import schemas

ROWS = rows.ENVIRONMENT.id


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """One environment of a mixture."""

    share: float = scheduled(1.0, unit="share")
    """Relative share of the groups."""
    preset: str | None = immutable(None)
    """The standard set that it is, which gives the settings below that are not given; for evaluation, unless it has data."""
    kind: str | None = immutable(None)
    """The environment that this is, where the name given to it is not its id."""
    options: dict[str, Any] = immutable({})
    """Which member of a family of environments."""
    data: DataConfig | None = immutable(None)
    """Rows of real tasks: a file, a folder or a name on the hub; null for generated tasks."""
    eval_data: DataConfig | None = immutable(None)
    """Rows of evaluation, all held out: the official test set; null takes them from the training tasks, as `split` says."""
    split: SplitConfig = field(default_factory=SplitConfig)
    drop_overlap: DropOverlap = immutable("none")
    """Training rows to leave out for what they share with evaluation prompts: none, exact, or ngrams (13 words in a row)."""
    format: str | None = immutable(None)
    """Format of its rows; null finds it out."""
    level: int = immutable(1)
    """Difficulty of generated tasks, from 1."""
    thinking: bool = immutable(True)
    """Whether the model thinks before it answers."""
    on_error: OnError = immutable("raise")
    """What a bad row of its data does: raise or skip."""
    max_turns: int | None = immutable(None)
    """Assistant turns after which an episode is cut off; null is the environment's own."""
    credit: Credit = immutable("all")
    """Code: what a program is worth that passes some tests: all (nothing) or fraction (their share)."""
    tools: list[str] = immutable([])
    """Tools that it has: calculator, python, or your typed functions as module.function or file.py:function."""
    tool_timeout_s: float = free(TIMEOUT_S, unit="seconds")
    """Seconds after which a call of your function returns an error to the model."""
    reward: str | None = immutable(None)
    """Your function that judges answers, (answer, row) -> number or numbers by name, as module.function or
    file.py:function; null leaves it to the environment. An environment of another name has the kind `rows` then."""
    weights: dict[str, float] = immutable({})
    """Weight of each reward part; empty is correctness alone, of your function the sum of its parts."""
    length_limit: int | None = immutable(None, unit="characters")
    """Characters of an episode from which the part `length` falls; null gives no part."""
    threads: int = free(THREADS)
    """Steps of it that a rollout worker runs at once; the others wait, off the clocks of their episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundEnv:
    """One environment of a run."""

    name: str
    """The name that the run gives to it."""
    config: EnvConfig
    definition: EnvDefinition
    """The environment, with the options of the run."""
    ref: EnvRef = field(init=False)
    """What its tasks carry to whoever plays them."""
    rows: dict[str, ReadRows] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Rows of its data that were read, by their setting: `temper.envs.source` reads them once for all who ask."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", self.definition.ref(self.name, _settings(self.config, self.definition)))

    @property
    def runs_programs(self) -> bool:
        """Whether it runs what the model writes, by itself or by a shared tool."""
        return self.definition.runs_programs or not RUN_PROGRAMS.isdisjoint(self.config.tools)

    def task(self, made: Task, key: str) -> Task:
        """Return as one of this environment the task that a generator or a row format made."""
        return replace(
            made,
            env=self.ref,
            key=key,
            thinking=UNLIMITED if self.config.thinking else OFF,
            tools=(*made.tools, *schemas(shared_tools(self.config.tools))),
        )


def bind(name: str, config: EnvConfig) -> BoundEnv:
    """Return the environment to which a run gives this name.

    Raise `ValueError`, with the key of the setting, if there is none, or where it can't be so.
    """
    key = f"envs.{name}"
    _check(key, config)
    try:
        definition = configured(_kind(name, config), config.options)
        if config.reward is None:
            only_known(config.weights, definition.parts, "weights")
        _check_reward(config, definition)
        shared_tools(config.tools)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    _check_level(key, config, definition)
    return BoundEnv(name=name, config=config, definition=definition)


def _kind(name: str, config: EnvConfig) -> str:
    return config.kind or (name if config.reward is None or name in ENVIRONMENTS else ROWS)


def _check_reward(config: EnvConfig, definition: EnvDefinition) -> None:
    if config.reward is not None:
        named_function(config.reward)
        if definition.max_turns != 1:
            raise ValueError(
                f"reward={config.reward}: {definition.id} judges its episodes itself; your function judges answers of one "
                f"turn: give kind={ROWS} with data, or a kind of one turn, such as math"
            )
    elif definition.id == ROWS:
        raise ValueError(f"{ROWS} needs reward, the name of your function, such as mine.reward")


def bind_all(envs: Mapping[str, EnvConfig]) -> dict[str, BoundEnv]:
    return {name: bind(name, config) for name, config in envs.items()}


def _check(key: str, config: EnvConfig) -> None:
    not_negative(f"{key}.share", config.share)
    if config.preset is not None and (config.kind is None or config.eval_data is None):
        raise ValueError(f"{key}.preset={config.preset} is not spelled out; see envs/presets/catalog.py, with_preset")
    numbers = {"level": config.level, "threads": config.threads, "tool_timeout_s": config.tool_timeout_s}
    given = {"max_turns": config.max_turns, "length_limit": config.length_limit}
    for name, value in (numbers | {name: value for name, value in given.items() if value is not None}).items():
        positive(f"{key}.{name}", value)
    config.split.check(f"{key}.split", has_data=config.data is not None, has_eval_data=config.eval_data is not None)
    if config.eval_data is not None and config.eval_data.streaming:
        raise ValueError(f"{key}.eval_data.streaming: rows of evaluation are all read, each once; leave it out")
    if config.drop_overlap != "none":
        _check_overlap(key, config)


def _check_level(key: str, config: EnvConfig, definition: EnvDefinition) -> None:
    most = definition.levels
    if definition.generate is None or config.data is not None or most is None or config.level <= most:
        return
    if most > 1:
        raise ValueError(f"{key}.level={config.level}: {definition.id} has the levels 1 to {most}")
    raise ValueError(f"{key}.level={config.level}: {definition.id} has level 1 alone; {key}.options makes tasks harder")


def _check_overlap(key: str, config: EnvConfig) -> None:
    said = f"{key}.drop_overlap={config.drop_overlap}"
    if config.data is None:
        raise ValueError(f"{said} leaves out rows of {key}.data, which is not given")
    if config.data.streaming and config.eval_data is None:
        raise ValueError(f"{said}: with {key}.data.streaming give {key}.eval_data, whose rows are all read")


def _settings(config: EnvConfig, definition: EnvDefinition) -> EnvSettings:
    return EnvSettings(
        max_turns=config.max_turns or definition.max_turns,
        tool_turns=config.max_turns or max(definition.max_turns or 0, DEFAULT_TURNS),
        weights=config.weights,
        length_limit=config.length_limit,
        tools=tuple(config.tools),
        tool_timeout_s=config.tool_timeout_s,
        reward=config.reward,
        threads=config.threads,
        credit=config.credit,
    )
