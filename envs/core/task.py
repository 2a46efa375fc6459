"""A task: one prompt with everything that its verifier needs, and the environment that plays it, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from temper.envs.core.thinking_mode import UNLIMITED, Thinking

Credit = Literal["all", "fraction"]
"""What a program is worth that passes some of its tests: nothing, or their share."""
DEFAULT_TURNS = 4
"""Most turns of an episode with tools, if neither the run nor the environment sets another limit."""
THREADS = 256
"""Steps of an environment that a rollout worker runs at once, where the run sets no other number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """How episodes of an environment are played and scored."""

    max_turns: int | None = None
    """Most turns of an episode: the run's, else the environment's own, or None if neither says."""
    tool_turns: int = DEFAULT_TURNS
    """Most turns of an episode in which shared tools are called."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward part; empty is correctness alone."""
    length_limit: int | None = None
    """Characters of an episode from which the part `length` falls; None gives no part."""
    tools: tuple[str, ...] = ()
    """The shared tools, and functions of the user as `module.function`."""
    tool_timeout_s: float = 30.0
    """Most seconds of a call of a user's function."""
    reward: str | None = None
    """The user's function that judges answers, as `module.function`; None leaves it to the environment."""
    threads: int = THREADS
    """Steps of it that a rollout worker runs at once."""
    credit: Credit = "all"
    """Code: what a program is worth that passes some tests."""
    scripted: bool = False
    """Whether `max_turns` given turns are played, all of them, instead of a model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRef:
    """An environment by name, class, options and settings: all that is needed to make it."""

    name: str = ""
    """The name that the run gives to it; empty for a task that no source has bound yet."""
    entry_point: str = ""
    """The `gymnasium.Env`, as `module:Class`; empty for a prompt that nobody plays, such as a row of chats."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The member of its family, as its definition says it."""
    settings: EnvSettings = EnvSettings()
    replays: bool = True
    """Whether the same turns bring a new environment to the same place."""


CHAT = EnvRef(name="chat")
"""The environment of a dialogue in a file, which nobody plays."""
UNBOUND = EnvRef()
"""The environment of a task that a generator or a row format has just made."""


Message = dict[str, Any]
"""A chat message in the Hugging Face format: `role`, `content`, and where they apply `reasoning_content`, `tool_calls`."""

Tool = dict[str, Any]
"""A tool in the Hugging Face format: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem for one environment. Its maker gives messages, spec and tools, and a key if only a part of the spec
    identifies it. Its source gives the rest, at once.

    `spec` is what the verifier needs (the expected answer, tests) and nothing else; it is plain JSON data and never
    shown to the model. `env` says who plays it; `key` is stable over restarts and unique within `env.name`. `thinking`
    says how long the model may think about it. `fault` says why it could not be made, where it could not: nobody can play it.
    """

    messages: tuple[Message, ...]
    spec: dict[str, Any]
    tools: tuple[Tool, ...] = ()
    env: EnvRef = UNBOUND
    key: str = ""
    thinking: Thinking = UNLIMITED
    fault: str = ""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError(f"task {self.label} has no messages; give at least one user message")

    @property
    def label(self) -> str:
        """Its environment and key, for messages."""
        return f"{self.env.name}/{self.key}"

    @property
    def thinks(self) -> bool:
        return self.thinking.on


class TaskSource(Protocol):
    """Where tasks come from: addressable by position, so that a restart continues where it stopped."""

    def task(self, index: int) -> Task:
        """Return the task at `index` (0 or more). A finite source starts again from its first task when it is exhausted."""
        ...
