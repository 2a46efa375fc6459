"""Where a thought ends: the rule by which it is closed by force, and what is measured of it. Pure functions of token ids.

The rule: after `tokens` tokens of thought the model may finish its line within `grace` more; then the closing is inserted,
and the model goes on to the answer. A thought begins where it is open: at the beginning of the turn where the prompt has
opened it, else behind the opening that the model writes. So no budget, 0 included, ends inside an opening, and an answer
without a thought is left alone, as is a thought that ends by itself. What the model has already begun of the closing is not
repeated. The same rule stands behind the rollouts, the evaluation and the server.
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
from temper.rollout.formats.messages import ASKED, render, set_mode
from temper.rollout.formats.turn_format import opens_thinking
from temper.rollout.trajectory import Closed, ThinkingStats

TOKENS_BEFORE = 32
"""How many tokens before the place of a forced closing are read at the least for what the model has already begun of it, and
how many may stand before the end of an opening beside its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """Where a thought ends at the latest: after `tokens`, or at the end of its line up to `grace` tokens later."""

    tokens: int
    grace: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.grace < 0:
            raise ValueError(
                f"a thought limit of {self.tokens} tokens and {self.grace} of grace: both must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedEnd:
    """A thought that is closed by force: the ids that are inserted at `start`."""

    start: int
    ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class ThinkingTags:
    """The tags of a tokenizer, and the rule in its tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, closing: str | None = None) -> None:
        """Read the tags of a tokenizer. `closing` closes a thought; None takes what the chat template puts there.

        Raises `ValueError` where the chat template knows no tags of a thought and none are declared, and where `closing`
        has no tag.
        """
        self._tokenizer = tokenizer
        form = find_format(tokenizer)
        if form.tags is None:
            raise ValueError(
                "the chat template knows no thinking tags: thoughts can't be limited; set the budgets' shares to 0, take a "
                "reasoning model, or name what opens and closes its thoughts with model.thinking_tags"
            )
        self.tags: Tags = form.tags
        self._think = form.think
        if closing is not None and self.tags.closing not in closing:
            raise ValueError(f"rollout.thinking.closing={closing!r} does not contain {self.tags.closing!r}")
        self.closing = closing if closing is not None else form.closing
        self.tag_id: int | None = tokenizer.get_vocab().get(self.tags.closing)
        """The token that is the closing tag; None where it is several."""
        self.opening_tokens = len(tokenizer(self.tags.opening, add_special_tokens=False)["input_ids"])

    @classmethod
    def find(cls, tokenizer: PreTrainedTokenizerBase, *, closing: str | None = None) -> "ThinkingTags | None":
        """Return the tags of a tokenizer that has some; None for a model that does not think.

        Raises `ValueError` where a `closing` is given that does not close the thoughts of this model.
        """
        if closing is None and find_format(tokenizer).tags is None:
            return None
        return cls(tokenizer, closing=closing)

    @cached_property
    def opened_by_prompt(self) -> bool:
        """Whether the prompt of a first turn opens the thought; else the model itself begins it with the opening tag."""
        prompt = render(self._tokenizer, set_mode([ASKED], self._think), open_turn=True) or ""
        return prompt.rstrip().endswith(self.tags.opening)

    def before_grammar(self) -> "ThinkingTags":
        """Return those whose closing ends with the tag: the answer's grammar begins right after it and takes nothing else."""
        return ThinkingTags(self._tokenizer, closing=self.closing.partition(self.tags.closing)[0] + self.tags.closing)

    @property
    def reach(self) -> int:
        """How many tokens of a turn are read for the opening of its thought."""
        return self.opening_tokens + TOKENS_BEFORE

    @property
    def window(self) -> int:
        """How many tokens before the place of a forced closing are read for what the model has already begun of it."""
        return max(TOKENS_BEFORE, len(self.closing.encode()))

    def opened_by(self, context_ids: Sequence[int]) -> bool:
        """Return whether the ids before a turn have opened its thought."""
        return opens_thinking(self._tokenizer, self.tags, context_ids)

    def close_of(self, ids: Sequence[int]) -> tuple[int, int] | None:
        """Return where the first closing tag lies: its first index and that after its last; None where there is none."""
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
        """Return where the thought of the turn that begins with `ids` is open: 0 where it was before, else behind the opening.

        None where the opening is not whole yet, or where the turn is an answer alone. `opened` says whether the thought was
        open before the turn; None is as before a first turn.
        """
        if self.opened_by_prompt if opened is None else opened:
            return 0
        reach = min(len(ids), self.reach)
        if not self._opens(ids[:reach]):
            return None
        return next(end for end in range(1, reach + 1) if self._opens(ids[:end]))

    def forced_end(self, ids: Sequence[int], limit: ThinkingLimit, *, opened: bool | None = None) -> ForcedEnd | None:
        """Return what is inserted into the turn that begins with `ids`, and where; None where the model is free so far.

        What stands before the place decides alone, so that the place does not move with what follows. `opened` is as in
        `thinking_start`.
        """
        begin = self.thinking_start(ids, opened=opened)
        if begin is None:
            return None
        latest = begin + limit.tokens + limit.grace
        places = range(begin + limit.tokens, min(len(ids), latest) + 1)
        start = next((n for n in places if n == latest or self._line_ends(ids[begin:n])), None)
        if start is None or self.close_of(ids[:start]) is not None:
            return None
        return ForcedEnd(start=start, ids=self._rest_of_closing(ids[:start]))

    def injected_marks(
        self, ids: Sequence[int], limit: ThinkingLimit, *, prefix_ids: Sequence[int] = (), opened: bool | None = None
    ) -> tuple[bool, ...]:
        """Return which of `ids`, which follow `prefix_ids` in the turn, the limit inserted."""
        close = self.forced_end([*prefix_ids, *ids], limit, opened=opened)
        places = range(0) if close is None else range(close.start, close.end)
        return tuple(place in places for place in range(len(prefix_ids), len(prefix_ids) + len(ids)))

    def answer_start(self, ids: Sequence[int]) -> int:
        """Return where the answer begins: after the closing, the white space behind its tag included; there must be one."""
        place = self.close_of(ids)
        assert place is not None
        tail = self.closing.partition(self.tags.closing)[2]
        ends = (place[1] + count for count in range(len(tail) + 1))
        return next((end for end in ends if self._text(ids[place[1] : end]) == tail), place[1])

    def cut(self, thinking_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the closing that follows a thought which was cut short: for training data."""
        return self._rest_of_closing(thinking_ids)

    def measure(
        self, ids: Sequence[int], *, thinks: bool, injected_T: Sequence[bool] = (), opened: bool | None = None
    ) -> ThinkingStats:
        """Return lengths and closing of a whole turn, its opening left out; `injected_T` marks what the engine inserted.

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

    def _rest_of_closing(self, thinking_ids: Sequence[int]) -> tuple[int, ...]:
        return self.rest_after(self._text(thinking_ids[-self.window :]))

    def rest_after(self, end: str) -> tuple[int, ...]:
        """Return the closing without what the end of a thought already has of it."""
        rest = self.closing[count_overlap(self.closing, end) :]
        if rest == self.closing:  # the tag may have been begun without the white space in front of it
            bare = self.closing.lstrip()
            rest = bare[known:] if (known := count_overlap(bare, end)) > 1 else rest
        return tuple(self._tokenizer(rest, add_special_tokens=False)["input_ids"])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def count_overlap(closing: str, text: str) -> int:
    """Return how many characters of `closing` stand at the end of `text`."""
    return next(count for count in range(len(closing), -1, -1) if text.endswith(closing[:count]))


BUDGET, GRACE, PREFIX, CLOSING = "thinking_budget", "thinking_grace", "thinking_prefix_tokens", "thinking_closing"


class RefusedRequest(ValueError):
    """A request that is not answered, with its status and the key at fault, if there is one."""

    def __init__(
        self, message: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter


def extra_args(limit: ThinkingLimit, *, prefix_tokens: int = 0) -> dict[str, Any]:
    """Return the extra arguments of a request under a limit, whose turn began with so many tokens of its prompt."""
    return {BUDGET: limit.tokens, GRACE: limit.grace} | ({PREFIX: prefix_tokens} if prefix_tokens else {})


def check_extra_args(given: Mapping[str, Any]) -> None:
    """Raise `RefusedRequest` for what should be a number of tokens and is none, and for a closing.

    What closes a thought is the engine's to know: the model has it for its own words.
    """
    for name in (BUDGET, GRACE, PREFIX):
        value = given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RefusedRequest(
                f"{name} is {format_value(value)}; it must be a whole number of tokens, 0 or more", parameter=name
            )
    if CLOSING in given:
        raise RefusedRequest(
            f"{CLOSING} is {format_value(given[CLOSING])}; it is the server's own, leave it out", parameter=CLOSING
        )


def format_value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
