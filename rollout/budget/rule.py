"""Where a thought ends: the rule by which it is closed by force, and what is measured of it. Pure functions of token ids.

The rule: after `tokens` tokens the model may finish its line within `grace` more; then the closing is inserted, and the
model goes on to the answer. A thought that ends by itself is left alone. What the model has already begun of the
closing is not repeated. The same rule stands behind the rollouts, the evaluation and the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from envs.core.turn_text import CLOSE_THOUGHT, OPEN_THOUGHT
from rollout.budget.chat_template import closing_of, opens_thought, require_thought_tags
from rollout.trajectory import Closed, Thought

TOKENS_BEFORE = 32
"""How many tokens before the place of a forced closing are read for what the model has already begun of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """Where a thought ends at the latest: after `tokens`, or at the end of its line up to `grace` tokens later."""

    tokens: int
    grace: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.grace < 0:
            raise ValueError(
                f"a thought limit of {self.tokens} tokens and {self.grace} of grace: both must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedClose:
    """A thought that is closed by force: the ids that are inserted at `start`."""

    start: int
    ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class ThoughtTags:
    """The tags of a tokenizer, and the rule in its tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, closing: str | None = None) -> None:
        """Read the tags of a tokenizer. `closing` closes a thought; None takes what the chat template puts there.

        Raises `ValueError` where neither the tokenizer nor its chat template knows the tags, where `closing` has no
        tag, and where the template shows no closing.
        """
        self._tokenizer = tokenizer
        require_thought_tags(tokenizer)
        if closing is not None and CLOSE_THOUGHT not in closing:
            raise ValueError(f"rollout.thought.closing={closing!r} does not contain {CLOSE_THOUGHT!r}")
        self.closing = closing if closing is not None else closing_of(tokenizer)
        self._tag_id: int | None = tokenizer.get_vocab().get(CLOSE_THOUGHT)

    @classmethod
    def find(cls, tokenizer: PreTrainedTokenizerBase, *, closing: str | None = None) -> "ThoughtTags | None":
        """Return the tags of a tokenizer that has some; None for a model that does not think.

        Raises `ValueError` where a `closing` is given that does not close the thoughts of this model.
        """
        if closing is not None:
            return cls(tokenizer, closing=closing)
        try:
            return cls(tokenizer)
        except ValueError:
            return None

    @cached_property
    def opened_by_prompt(self) -> bool:
        """Whether the prompt opens the thought; else the model itself begins it with the opening tag."""
        return opens_thought(self._tokenizer)

    def close_of(self, ids: Sequence[int]) -> tuple[int, int] | None:
        """Return where the first closing tag lies: its first index and that after its last; None where there is none."""
        if self._tag_id is not None:
            return (at := list(ids).index(self._tag_id), at + 1) if self._tag_id in ids else None
        text = self._text(ids)
        if CLOSE_THOUGHT not in text:
            return None
        before = text.index(CLOSE_THOUGHT)
        end = next(n for n in range(1, len(ids) + 1) if CLOSE_THOUGHT in self._text(ids[:n]))
        start = max(n for n in range(end) if len(self._text(ids[:n])) <= before)
        return start, end

    def forced_close(self, ids: Sequence[int], limit: ThoughtLimit) -> ForcedClose | None:
        """Return what is inserted into the turn that begins with `ids`, and where; None where the model is free so far.

        What stands before the place decides alone, so that the place does not move with what follows.
        """
        latest = limit.tokens + limit.grace
        places = range(limit.tokens, min(len(ids), latest) + 1)
        start = next((n for n in places if n == latest or self._line_ends(ids[:n])), None)
        if start is None or not self._thinks(ids[:start]) or self.close_of(ids[:start]) is not None:
            return None
        return ForcedClose(start=start, ids=self._rest_of_closing(ids[:start]))

    def forced_marks(self, ids: Sequence[int], limit: ThoughtLimit, *, begun: Sequence[int] = ()) -> tuple[bool, ...]:
        """Return which of `ids`, that follow those with which the turn had `begun`, a limit inserted."""
        close = self.forced_close([*begun, *ids], limit)
        places = range(0) if close is None else range(close.start, close.end)
        return tuple(place in places for place in range(len(begun), len(begun) + len(ids)))

    def answer_start(self, ids: Sequence[int]) -> int:
        """Return where the answer begins: after the closing, the white space behind its tag included; there must be one."""
        place = self.close_of(ids)
        assert place is not None
        tail = self.closing.partition(CLOSE_THOUGHT)[2]
        ends = (place[1] + count for count in range(len(tail) + 1))
        return next((end for end in ends if self._text(ids[place[1] : end]) == tail), place[1])

    def cut(self, thought: Sequence[int]) -> tuple[int, ...]:
        """Return the closing that follows a thought which was cut short: for training data."""
        return self._rest_of_closing(thought)

    def measure(self, ids: Sequence[int], *, thinks: bool, forced_T: Sequence[bool] = ()) -> Thought:
        """Return lengths and closing of a whole turn; `forced_T` marks what the engine inserted."""
        if not thinks:
            return Thought(tokens=0, answer_tokens=len(ids), closed=Closed.NONE)
        if any(forced_T):
            start = list(forced_T).index(True)
            closed = Closed.LINE_END if self._line_ends(ids[:start]) else Closed.ABRUPT
            return Thought(tokens=start, answer_tokens=len(ids) - start - sum(forced_T), closed=closed)
        place = self.close_of(ids)
        if place is None:
            return Thought(tokens=len(ids), answer_tokens=0, closed=Closed.NEVER)
        return Thought(tokens=place[0], answer_tokens=len(ids) - place[1], closed=Closed.ITSELF)

    def _thinks(self, ids: Sequence[int]) -> bool:
        """Return whether the turn is a thought at all, where the model opens it itself."""
        if self.opened_by_prompt:
            return True
        beginning = self._text(ids[:TOKENS_BEFORE]).lstrip()
        return beginning.startswith(OPEN_THOUGHT) or OPEN_THOUGHT.startswith(beginning)

    def _line_ends(self, ids: Sequence[int]) -> bool:
        return bool(ids) and "\n" in self._text(ids[-1:])

    def _rest_of_closing(self, thought: Sequence[int]) -> tuple[int, ...]:
        """Return the closing without what the thought's end already has of it."""
        end = self._text(thought[-TOKENS_BEFORE:])
        rest = self.closing[begun(self.closing, end) :]
        if rest == self.closing:  # the tag may have been begun without the white space in front of it
            bare = self.closing.lstrip()
            rest = bare[known:] if (known := begun(bare, end)) > 1 else rest
        return tuple(self._tokenizer(rest, add_special_tokens=False)["input_ids"])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def begun(closing: str, text: str) -> int:
    """Return how many characters of `closing` stand at the end of `text`."""
    return next(count for count in range(len(closing), -1, -1) if text.endswith(closing[:count]))
