"""A task: one prompt with everything that its verifier needs."""

from dataclasses import dataclass
from typing import Any, Protocol

from temper.envs.core.env_ref import UNBOUND, EnvRef
from temper.envs.core.thinking_mode import UNLIMITED, Thinking

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
        """Whether the model thinks before it answers."""
        return self.thinking.on


class TaskSource(Protocol):
    """Where tasks come from: addressable by position, so that a restart continues where it stopped."""

    def task(self, index: int) -> Task:
        """Return the task at `index` (0 or more). A finite source starts again from its first task when it is exhausted."""
        ...
