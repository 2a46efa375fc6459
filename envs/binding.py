"""An environment with the name and settings of a run."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from temper.envs.catalog import ENVIRONMENTS, configure_env, env_class
from temper.envs.classifier import check_classifier
from temper.envs.config import EnvConfig
from temper.envs.core.bounds import require_known, require_not_negative, require_positive
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.functions import load_function
from temper.envs.core.task import DEFAULT_TURNS, EnvRef, EnvSettings, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.data.split import ReadRows
from temper.envs.judge import judge_server
from temper.envs.questions import rows
from temper.envs.task_env import TaskEnv
from temper.envs.tools.shared_tools import RUN_PROGRAMS, shared_tools
from temper.envs.tools.text_tool import schemas
from temper.rewards.score import JUDGE

ROWS = rows.ENVIRONMENT.id


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundEnv:
    """One environment of a run."""

    name: str
    """Its name in the run."""
    config: EnvConfig
    definition: EnvDefinition
    """The environment with the options of the run."""
    ref: EnvRef = field(init=False)
    """The reference that its tasks carry."""
    rows: dict[str, ReadRows] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Rows of data already read, by setting. `temper.envs.source` reads each once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", self.definition.ref(self.name, _settings(self.config, self.definition)))

    @property
    def runs_programs(self) -> bool:
        """Whether it runs model-written programs, itself or by a shared tool."""
        return self.definition.runs_programs or not RUN_PROGRAMS.isdisjoint(self.config.tools)

    def task(self, made: Task, key: str) -> Task:
        """Return a task of a generator or row format as a task of this environment."""
        return replace(
            made,
            env=self.ref,
            key=str(key),  # a generator may number its tasks, and files hold texts
            thinking=UNLIMITED if self.config.thinking else OFF,
            tools=(*made.tools, *schemas(shared_tools(self.config.tools))),
        )


def bind(name: str, config: EnvConfig) -> BoundEnv:
    """Return the environment that a run configures under this name.

    Raise `ValueError` with the key of the setting if it does not exist or can't be used.
    """
    key = f"envs.{name}"
    _check(key, config)
    try:
        definition = configure_env(_kind(name, config), config.options)
        if config.reward is None and config.agent is None and definition.agent is None:
            require_known(config.weights, (*definition.parts, *([JUDGE] if config.judge else [])), "weights")
        if (judge := config.judge) is not None:
            if judge.classifier:
                config = replace(config, judge=replace(judge, classifier=check_classifier(judge.classifier)))
            elif judge.url:
                judge_server(judge)
            made = env_class(definition.ref())
            if not (isinstance(made, type) and issubclass(made, TaskEnv)):
                raise ValueError(f"judge: {definition.id} scores its own episodes, which have no answer to judge")
        _check_reward(config, definition)
        if config.agent is not None:
            load_function(config.agent)
        if definition.agent is not None:
            for setting in ("agent", "judge", "reward", "length_limit", "tools"):
                if getattr(config, setting):
                    raise ValueError(f"{setting}: {definition.id} plays and scores its own episodes; remove it")
        shared_tools(config.tools)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    _check_level(key, config, definition)
    return BoundEnv(name=name, config=config, definition=definition)


def _kind(name: str, config: EnvConfig) -> str:
    scored = config.reward is not None or config.judge is not None
    return config.kind or (ROWS if scored and name not in ENVIRONMENTS else name)


def _check_reward(config: EnvConfig, definition: EnvDefinition) -> None:
    if config.reward is not None:
        _check_signature(config.reward)
        if definition.max_turns != 1:
            raise ValueError(
                f"reward={config.reward}: {definition.id} scores its own episodes, but your function scores answers of one "
                f"turn; set kind={ROWS} with data, or a single-turn kind such as math"
            )
    elif definition.id == ROWS and config.judge is None:
        raise ValueError(f"{ROWS} needs a reward function or a judge; set reward, such as mine.reward, or judge")


def _check_signature(reward: str) -> None:
    """Raise `ValueError` if the function can't be imported, or can't be called with an answer and a row."""
    function = load_function(reward)
    try:
        taken = inspect.signature(function)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        taken.bind("", {})
    except TypeError as error:
        raise ValueError(
            f"reward={reward} takes {taken}; write it as f(answer, row), which judges one answer"
        ) from error


def bind_all(envs: Mapping[str, EnvConfig]) -> dict[str, BoundEnv]:
    return {name: bind(name, config) for name, config in envs.items()}


def _check(key: str, config: EnvConfig) -> None:
    require_not_negative(f"{key}.share", config.share)
    if config.preset is not None and (config.kind is None or config.eval_data is None):
        raise ValueError(
            f"{key}.preset={config.preset} is not expanded; call with_preset of envs/presets/catalog.py first"
        )
    numbers = {"level": config.level, "threads": config.threads, "tool_timeout_s": config.tool_timeout_s}
    given = {"max_turns": config.max_turns, "length_limit": config.length_limit}
    for name, value in (numbers | {name: value for name, value in given.items() if value is not None}).items():
        require_positive(f"{key}.{name}", value)
    config.split.check(f"{key}.split", has_data=config.data is not None, has_eval_data=config.eval_data is not None)
    if config.eval_data is not None and config.eval_data.streaming:
        raise ValueError(f"{key}.eval_data.streaming: evaluation reads every row once; remove it")
    if config.drop_overlap != "none":
        _check_overlap(key, config)


def _check_level(key: str, config: EnvConfig, definition: EnvDefinition) -> None:
    most = definition.levels
    if definition.generate is None or config.data is not None or most is None or config.level <= most:
        return
    if most > 1:
        raise ValueError(f"{key}.level={config.level}: {definition.id} has levels 1 to {most}")
    raise ValueError(
        f"{key}.level={config.level}: {definition.id} has only level 1; use {key}.options for harder tasks"
    )


def _check_overlap(key: str, config: EnvConfig) -> None:
    prefix = f"{key}.drop_overlap={config.drop_overlap}"
    if config.data is None:
        raise ValueError(f"{prefix} needs {key}.data; set it, or remove drop_overlap")
    if config.data.streaming and config.eval_data is None:
        raise ValueError(f"{prefix}: {key}.data.streaming needs {key}.eval_data, which is read completely")


def _settings(config: EnvConfig, definition: EnvDefinition) -> EnvSettings:
    return EnvSettings(
        max_turns=config.max_turns or (None if config.agent or definition.agent else definition.max_turns),
        tool_turns=config.max_turns or max(definition.max_turns or 0, DEFAULT_TURNS),
        weights=config.weights,
        length_limit=config.length_limit,
        tools=tuple(config.tools),
        tool_timeout_s=config.tool_timeout_s,
        reward=config.reward,
        judge=config.judge,
        agent=config.agent or definition.agent,
        threads=config.threads,
        credit=config.credit,
    )
