"""The thinking budget: when the thinking ends by force, and its measures. Pure functions of token ids.

After `tokens` tokens of thinking the model may finish its line within `grace` more tokens. Then the closing is injected,
and the model continues with the answer. The count starts after the opening tag, in the prompt or in the turn. So no budget
ends inside an opening tag, not even 0. Turns without thinking, and thinking that ends by itself, are left alone. A closing
that the model started is completed, not repeated. Rollouts, evaluation and the server use the same rule.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.envs.core.turn_text import Tags
from temper.rollout.formats.find import find_format
from temper.rollout.formats.messages import USER_MESSAGE, render, set_mode
from temper.rollout.formats.turn_format import opens_thinking
from temper.rollout.trajectory import Closed, ThinkingStats

TOKENS_BEFORE = 32
"""Fewest tokens before a forced end in which a started closing is searched, and most tokens before an opening tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """Limit of the thinking: `tokens`, or the end of the line within `grace` more tokens."""

    tokens: int
    grace: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.grace < 0:
            raise ValueError(
                f"a thinking limit of {self.tokens} tokens with a grace of {self.grace}: both must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedEnd:
    """A forced end of thinking: `ids` are injected at `start`."""

    start: int
    ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class ThinkingTags:
    """The thinking tags of a tokenizer, and the budget rule over its tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, closing: str | None = None) -> None:
        """Read the tags. `closing` ends the thinking. None takes it from the chat template.

        Raises `ValueError` if the model has no thinking tags, and if `closing` has no closing tag.
        """
        self._tokenizer = tokenizer
        form = find_format(tokenizer)
        if form.tags is None:
            raise ValueError(
                "the chat template has no thinking tags, so thinking can't be limited; set the budgets' shares to 0, use a "
                "reasoning model, or set model.thinking_tags to its tags"
            )
        self.tags: Tags = form.tags
        self._think = form.think
        if closing is not None and self.tags.closing not in closing:
            raise ValueError(f"rollout.thinking.closing={closing!r} does not contain {self.tags.closing!r}")
        self.closing = closing if closing is not None else form.closing
        self.tag_id: int | None = tokenizer.get_vocab().get(self.tags.closing)
        """The closing tag's token. None if it spans several."""
        self.opening_tokens = len(tokenizer(self.tags.opening, add_special_tokens=False)["input_ids"])

    @classmethod
    def find(cls, tokenizer: PreTrainedTokenizerBase, *, closing: str | None = None) -> "ThinkingTags | None":
        """Return the tags of a tokenizer, or None if the model does not think.

        Raises `ValueError` if `closing` does not close this model's thinking.
        """
        if closing is None and find_format(tokenizer).tags is None:
            return None
        return cls(tokenizer, closing=closing)

    @cached_property
    def is_opened_by_prompt(self) -> bool:
        """Whether the prompt of a first turn contains the opening tag. Otherwise the model writes it."""
        prompt = render(self._tokenizer, set_mode([USER_MESSAGE], self._think), open_turn=True) or ""
        return prompt.rstrip().endswith(self.tags.opening)

    def before_grammar(self) -> "ThinkingTags":
        """Return tags whose closing ends at the tag. The grammar of the answer starts directly after it."""
        return ThinkingTags(self._tokenizer, closing=self.closing.partition(self.tags.closing)[0] + self.tags.closing)

    @property
    def reach(self) -> int:
        """Number of tokens in which an opening tag is searched."""
        return self.opening_tokens + TOKENS_BEFORE

    @property
    def window(self) -> int:
        """Number of tokens before a forced end in which a started closing is searched."""
        return max(TOKENS_BEFORE, len(self.closing.encode()))

    def is_opened_by(self, context_ids: Sequence[int]) -> bool:
        """Return whether the context of a turn ends with the opening tag."""
        return opens_thinking(self._tokenizer, self.tags, context_ids)

    def close_of(self, ids: Sequence[int]) -> tuple[int, int] | None:
        """Return the range of the first closing tag, or None."""
        if self.tag_id is not None:
            return (at := list(ids).index(self.tag_id), at + 1) if self.tag_id in ids else None
        text = self._text(ids)
        tag = self.tags.closing
        if tag not in text:
            return None
        before = text.index(tag)
        end = next(n for n in range(1, len(ids) + 1) if tag in self._text(ids[:n]))
        start = max(n for n in range(end) if len(self._text(ids[:n])) <= before)
        return start, end

    def thinking_start(self, ids: Sequence[int], *, opened: bool | None = None) -> int | None:
        """Return the index at which the thinking starts: 0 if it is open already, else after the opening tag.

        None if the opening tag is incomplete, or the turn does not think. `opened`: whether the context opens the thinking;
        None takes it from a first prompt.
        """
        if self.is_opened_by_prompt if opened is None else opened:
            return 0
        reach = min(len(ids), self.reach)
        if not self._opens(ids[:reach]):
            return None
        return next(end for end in range(1, reach + 1) if self._opens(ids[:end]))

    def forced_end(self, ids: Sequence[int], limit: ThinkingLimit, *, opened: bool | None = None) -> ForcedEnd | None:
        """Return the forced end of a turn that starts with `ids`, or None.

        Only the ids before the place count, so later ids do not move it. `opened` is as in `thinking_start`.
        """
        begin = self.thinking_start(ids, opened=opened)
        if begin is None:
            return None
        latest = begin + limit.tokens + limit.grace
        places = range(begin + limit.tokens, min(len(ids), latest) + 1)
        start = next((n for n in places if n == latest or self._line_ends(ids[begin:n])), None)
        if start is None or self.close_of(ids[:start]) is not None:
            return None
        return ForcedEnd(start=start, ids=self.complete_closing(ids[:start]))

    def injected_marks(
        self, ids: Sequence[int], limit: ThinkingLimit, *, prefix_ids: Sequence[int] = (), opened: bool | None = None
    ) -> tuple[bool, ...]:
        """Return which of `ids`, which follow `prefix_ids` in the turn, the limit injected."""
        close = self.forced_end([*prefix_ids, *ids], limit, opened=opened)
        places = range(0) if close is None else range(close.start, close.end)
        return tuple(place in places for place in range(len(prefix_ids), len(prefix_ids) + len(ids)))

    def answer_start(self, ids: Sequence[int]) -> int:
        """Return the index at which the answer begins: after the closing and its white space. The turn must have a closing."""
        place = self.close_of(ids)
        assert place is not None
        tail = self.closing.partition(self.tags.closing)[2]
        ends = (place[1] + count for count in range(len(tail) + 1))
        return next((end for end in ends if self._text(ids[place[1] : end]) == tail), place[1])

    def measure(
        self, ids: Sequence[int], *, thinks: bool, injected_T: Sequence[bool] = (), opened: bool | None = None
    ) -> ThinkingStats:
        """Return the measures of a whole turn, without its opening tag. `injected_T` marks injected tokens.

        `opened` is as in `thinking_start`.
        """
        if not thinks:
            return ThinkingStats(tokens=0, answer_tokens=len(ids), closed=Closed.NONE)
        begin = self.thinking_start(ids, opened=opened)
        at = begin or 0
        if any(injected_T):
            start = list(injected_T).index(True)
            closed = Closed.LINE_END if self._line_ends(ids[at:start]) else Closed.ABRUPT
            return ThinkingStats(tokens=start - at, answer_tokens=len(ids) - start - sum(injected_T), closed=closed)
        place = self.close_of(ids)
        if place is None and begin is None and not self._begins_opening(ids):  # it answered at once
            return ThinkingStats(tokens=0, answer_tokens=len(ids), closed=Closed.NONE)
        if place is None:
            return ThinkingStats(tokens=len(ids) - at, answer_tokens=0, closed=Closed.NEVER)
        return ThinkingStats(tokens=max(0, place[0] - at), answer_tokens=len(ids) - place[1], closed=Closed.ITSELF)

    def _opens(self, ids: Sequence[int]) -> bool:
        return self._text(ids).lstrip().startswith(self.tags.opening)

    def _begins_opening(self, ids: Sequence[int]) -> bool:
        return self.tags.opening.startswith(self._text(ids[: self.reach]).lstrip())

    def _line_ends(self, ids: Sequence[int]) -> bool:
        return bool(ids) and "\n" in self._text(ids[-1:])

    def complete_closing(self, thinking_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the rest of the closing after thinking that ends with these ids."""
        return self.rest_after(self._text(thinking_ids[-self.window :]))

    def rest_after(self, end: str) -> tuple[int, ...]:
        """Return the closing without the part that is already at the `end` of the thinking."""
        rest = self.closing[count_overlap(self.closing, end) :]
        if rest == self.closing:  # the model may have started the tag without the white space before it
            bare = self.closing.lstrip()
            rest = bare[known:] if (known := count_overlap(bare, end)) > 1 else rest
        return tuple(self._tokenizer(rest, add_special_tokens=False)["input_ids"])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def count_overlap(closing: str, text: str) -> int:
    """Return the length of the longest prefix of `closing` that ends `text`."""
    return next(count for count in range(len(closing), -1, -1) if text.endswith(closing[:count]))


BUDGET, GRACE, PREFIX, CLOSING = "thinking_budget", "thinking_grace", "thinking_prefix_tokens", "thinking_closing"


class RefusedRequest(ValueError):
    """A refused request, with its HTTP status and the key at fault, if there is one."""

    def __init__(
        self, message: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter


def extra_args(limit: ThinkingLimit, *, prefix_tokens: int = 0) -> dict[str, Any]:
    """Return the extra arguments for a limit. The turn starts with the last `prefix_tokens` of the prompt."""
    return {BUDGET: limit.tokens, GRACE: limit.grace} | ({PREFIX: prefix_tokens} if prefix_tokens else {})


def check_extra_args(given: Mapping[str, Any]) -> None:
    """Raise `RefusedRequest` for an invalid number of tokens, and for a closing, which only the server sets."""
    for name in (BUDGET, GRACE, PREFIX):
        value = given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RefusedRequest(
                f"{name} is {format_value(value)}; it must be a whole number of tokens, 0 or more", parameter=name
            )
    if CLOSING in given:
        raise RefusedRequest(
            f"{CLOSING} is {format_value(given[CLOSING])}; only the server sets it, leave it out", parameter=CLOSING
        )


def format_value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
