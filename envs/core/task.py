"""A task: one prompt, its verifier's data and its environment, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from temper.envs.core.judge_config import JudgeConfig
from temper.envs.core.thinking_mode import UNLIMITED, Thinking

Credit = Literal["all", "fraction"]
"""Credit for a program that passes some of its tests: none (`all`) or their share."""
DEFAULT_TURNS = 4
"""Turn limit of an episode with tools, if neither the run nor the environment sets one."""
THREADS = 256
"""Default number of environment steps that run at once in a rollout worker."""
TOOL_TIMEOUT_S = 30.0
"""Time limit of a call of a user's function, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """How episodes of an environment run and are scored."""

    max_turns: int | None = None
    """Turn limit of an episode, from the run or the environment. None sets none."""
    tool_turns: int = DEFAULT_TURNS
    """Turn limit of an episode with calls of shared tools."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward part. Empty uses correctness alone."""
    length_limit: int | None = None
    """Characters of an episode above which the part `length` falls. None omits the part."""
    tools: tuple[str, ...] = ()
    """Shared tools, and the user's functions as `module.function`."""
    tool_timeout_s: float = 30.0
    """Time limit of a call of a user's function, in seconds."""
    reward: str | None = None
    """The user's reward function as `module.function`. None uses the environment's score."""
    judge: JudgeConfig | None = None
    """Another model that scores answers, as the part `judge`."""
    agent: str | None = None
    """The user's agent as `module.function`, which plays the episodes. None lets the model answer the environment."""
    threads: int = THREADS
    """Environment steps that run at once in a rollout worker."""
    credit: Credit = "all"
    """Credit for code that passes some tests."""
    scripted: bool = False
    """Whether the episode replays all `max_turns` turns of a transcript."""

    @property
    def compares(self) -> bool:
        """Whether a judge compares the answers of a group."""
        return self.judge is not None and self.judge.compare


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRef:
    """An environment by name, class, options and settings, enough to make it."""

    name: str = ""
    """Its name in the run, empty until a source binds the task."""
    entry_point: str = ""
    """The `gymnasium.Env` as `module:Class`, empty for a prompt without an environment, such as a chat row."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Selects a member of the family, as in its definition."""
    settings: EnvSettings = EnvSettings()
    replays: bool = True
    """Whether the same turns lead a new environment to the same state."""


CHAT = EnvRef(name="chat")
"""The environment of a dialogue in a file, which has no episodes."""
UNBOUND = EnvRef()
"""The environment of a new task of a generator or row format."""


Message = dict[str, Any]
"""A chat message in the Hugging Face format: `role`, `content`, and optionally `reasoning_content` and `tool_calls`."""

Tool = dict[str, Any]
"""A tool in the Hugging Face format: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


NOT_KEPT: tuple[Message, ...] = ({"role": "user", "content": ""},)
"""The messages of a task without data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem for one environment. Its maker sets messages, spec and tools, and a key if only part of the spec
    identifies it. Its source sets the rest.

    `spec` is the verifier's data (the expected answer, tests) as plain JSON, never shown to the model. `key` is stable over
    restarts and unique within `env.name`. `thinking` limits the thinking. `fault` is set if the task could not be made.
    Such a task can't run.
    """

    messages: tuple[Message, ...]
    spec: dict[str, Any]
    tools: tuple[Tool, ...] = ()
    env: EnvRef = UNBOUND
    key: str = ""
    thinking: Thinking = UNLIMITED
    fault: str = ""
    full_request: tuple[Message, ...] = ()
    """The whole request, if `messages` has a part of it, as with a customer. The model never sees it."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError(f"task {self.label} has no messages; give at least one user message")

    @property
    def label(self) -> str:
        """Its environment and key, for messages."""
        return f"{self.env.name}/{self.key}"

    @property
    def request(self) -> tuple[Message, ...]:
        """The messages that identify the task. Splits, overlap checks and judges use them."""
        return self.full_request or self.messages

    @property
    def thinks(self) -> bool:
        return self.thinking.on

    @property
    def without_data(self) -> "Task":
        """Its name and thinking alone, for files of answers. Its source makes the rest again."""
        return Task(env=EnvRef(name=self.env.name), key=self.key, messages=NOT_KEPT, spec={}, thinking=self.thinking)


class TaskSource(Protocol):
    """Tasks by position, so that a restart can continue."""

    def task(self, index: int) -> Task:
        """Return the task at `index` (0 or more). A finite source repeats."""
        ...
