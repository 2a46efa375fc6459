"""What is known of a model's family, and the one reading of its turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Tool
from temper.envs.core.turn_text import ParsedTurn, Tags, split_turn
from temper.rollout.formats.call_syntax import CallSyntax
from temper.rollout.formats.channels import read_channels

OPENING_TOKENS = 64
"""How many tokens before a turn are read for the opening of its thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormat:
    """How a model thinks, calls and ends its turns; `find_format` finds it out for a tokenizer.

    `tags` are those of a thought, None for a model that does not think, `closing` is the text that closes one by force, and
    `thought_field` the field of a message that the template writes as the thought, None where it writes none. `ends` are
    the tokens that end a turn, `end_ids` their ids; `parted_by` is what the template writes between a turn and the next
    message, behind one of calls the last of them, and `behind_answer` what stands between an answer and that. `calls` is
    how tool calls are written, None where `no_calls` says why there are none; with `parallel` a turn may have several.
    `arguments_as_text` says that the template takes arguments as JSON texts. `think` and `no_think` are what a system message
    has to say in either mode, "" where the template opens the turn so without. `channels` is the format of gpt-oss.
    """

    name: str
    tags: Tags | None
    closing: str
    thought_field: str | None
    ends: tuple[str, ...]
    end_ids: tuple[int, ...]
    parted_by: tuple[str, ...]
    calls: CallSyntax | None
    no_calls: str
    behind_answer: str = ""
    parallel: bool = True
    arguments_as_text: bool = False
    think: str = ""
    no_think: str = ""
    channels: bool = False

    @property
    def reads_calls(self) -> bool:
        """Whether tool calls are understood."""
        return self.channels or self.calls is not None

    def parse(self, text: str, *, thinks: bool, tools: Sequence[Tool] = (), opened: bool = True) -> ParsedTurn:
        """Read a turn, without what ended it: thought, answer and calls, and whether each has the form that it should have.

        `opened` says whether the prompt has opened the thought. The schemas of `tools` give the arguments of calls their
        types, where the family writes none.
        """
        if self.channels:
            return read_channels(text, thinks=thinks)
        bare = text.rstrip().removesuffix(self.behind_answer) if self.behind_answer else text
        parts = split_turn(bare, self.tags, thinks=thinks, opened=opened)
        calls, said = ((), parts.answer) if self.calls is None else self.calls.read(parts.answer, tools)
        return ParsedTurn(
            text=text,
            thought=parts.thought,
            answer=parts.answer,
            said=said,
            readable=parts.readable,
            well_formed=parts.well_formed,
            calls=calls,
        )


def opens_thought(tokenizer: PreTrainedTokenizerBase, tags: Tags | None, context_ids: Sequence[int]) -> bool:
    """Return whether the ids before a turn have opened its thought; else the model itself does, or answers at once."""
    return tags is not None and _ends_with(tokenizer, tags.opening, tuple(context_ids[-OPENING_TOKENS:]))


@lru_cache(maxsize=4096)  # asked several times of each turn, and alike for the answers to one task
def _ends_with(tokenizer: PreTrainedTokenizerBase, opening: str, ids: tuple[int, ...]) -> bool:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False)).rstrip().endswith(opening)
