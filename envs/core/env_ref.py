"""The environment that plays a task, as plain data that travels with the task to whichever process makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Credit = Literal["all", "fraction"]
"""What a program is worth that passes some of its tests: nothing, or their share."""
DEFAULT_TURNS = 4
"""Most turns of an episode with tools, where neither the run nor the environment says otherwise."""
THREADS = 256
"""Steps of an environment that a rollout worker runs at once, where the run sets no other number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """How episodes of an environment are played and scored."""

    max_turns: int | None = None
    """Most turns of an episode: the run's, else the environment's own; None where neither says."""
    tool_turns: int = DEFAULT_TURNS
    """Most turns of an episode in which shared tools are called."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward part; empty is correctness alone."""
    length_limit: int | None = None
    """Characters of an episode from which the part `length` falls; None gives no part."""
    tools: tuple[str, ...] = ()
    """Names of the shared tools."""
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
