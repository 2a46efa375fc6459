"""The turn format that a run declares for its model."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTurns:
    """A run's declarations about turns, which override the model's files. Empty fields change nothing."""

    chat_template: str = ""
    """Text of the chat template."""
    end_of_turn: tuple[str, ...] = ()
    thinking_tags: tuple[str, ...] = ()
    tool_calls: Mapping[str, object] = field(default_factory=dict)

    def config(self) -> dict[str, object]:
        """Return the entries for `tokenizer_config.json`."""
        entries: dict[str, object] = {}
        if self.end_of_turn:
            entries |= {"eos_token": self.end_of_turn[0], "end_of_turn": list(self.end_of_turn)}
        entries |= {"thinking_tags": list(self.thinking_tags)} if self.thinking_tags else {}
        return entries | ({"tool_calls": dict(self.tool_calls)} if self.tool_calls else {})


AS_IT_IS = DeclaredTurns()
