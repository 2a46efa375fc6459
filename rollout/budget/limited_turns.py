"""Many turns whose thoughts have limits, read and closed together: the rule of `rollout/budget/rule.py` on tensors.

A turn has a slot. What is known of it is a row of whole numbers on the engine's device, and a token of each turn is read with a
few operations over all of them, whatever their number. Nothing there is waited for.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from temper.rollout.budget.limit_tables import ENDED, limit_tables
from temper.rollout.budget.rule import ThoughtLimit, ThoughtTags

NOWHERE = -1
CERTAIN = 1e9
"""The logit of a token that is inserted: all others have no probability beside it, at any temperature."""


class Turns(NamedTuple):
    """What is known of some turns, each entry a tensor of whole numbers over them.

    `size` counts a turn's tokens. Its thought, open since `begin`, ends after `tokens` at the end of a line, at the latest
    after `latest`. `opening` and `closing` are states of `LimitTables`. From `start` on what stands for the state `at_start` is
    inserted.
    """

    size: Tensor
    tokens: Tensor
    latest: Tensor
    opening: Tensor
    begin: Tensor
    closing: Tensor
    start: Tensor
    at_start: Tensor


FREE = Turns(*(torch.tensor(number) for number in (0, 0, 0, 0, NOWHERE, ENDED, NOWHERE, ENDED)))
"""A slot whose turn has no limit."""


class LimitedTurns:
    """The turns of an engine, by slot, and the tables of its tokenizer on the engine's device."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tags: Sequence[ThoughtTags],
        *,
        vocabulary: int,
        slots: int,
        device: torch.device,
    ) -> None:
        """`tags` differ in their closing alone; a turn is given the number of those that are its own."""
        self._tags = tuple(tags)
        self._tables = limit_tables(tokenizer, tags, size=vocabulary)
        self._opening_SV, self._closing_SV, self._line_end_V, self._forced_SF, self._forced_S = (
            torch.from_numpy(table).to(device)
            for table in (
                self._tables.opening_SV,
                self._tables.closing_SV,
                self._tables.line_end_V,
                self._tables.forced_SF,
                self._tables.forced_S,
            )
        )
        self._turns = torch.stack(FREE).repeat(slots, 1).to(device)

    def put(self, slots: Sequence[int], turns: Sequence[Turns]) -> None:
        """Let turns that begin, or go on here, have these slots."""
        if slots:
            device = self._turns.device
            rows = torch.stack([torch.stack(turn) for turn in turns])
            self._turns[torch.tensor(slots).to(device, non_blocking=True)] = rows.to(device, non_blocking=True)

    def begun(self, limit: ThoughtLimit, context: Sequence[int], ids: Sequence[int], *, variant: int = 0) -> Turns:
        """Return what is known of a turn that follows `context` and has begun with `ids`, as the rule sees it."""
        tags = self._tags[variant]
        opened = tags.opened_by(context)
        begin = tags.thought_start(ids, opened=opened)
        close = tags.forced_close(ids, limit, opened=opened)
        tables, ended = self._tables, tags.close_of(ids) is not None
        way = tables.opened if begin is not None else _walked(tables.opening_SV, tables.unopened, ids[: tags.reach])
        numbers = (
            len(ids),
            limit.tokens,
            limit.tokens + limit.grace,
            way,
            NOWHERE if begin is None else begin,
            ENDED if ended else self._closing(tags, ids, variant),
            NOWHERE if close is None else close.start,
            ENDED if close is None else self._closing(tags, ids[: close.start], variant),
        )
        return Turns(*map(torch.tensor, numbers))

    def _closing(self, tags: ThoughtTags, ids: Sequence[int], variant: int) -> int:
        """Return the state that the closing of an open thought is in, which its last tokens tell."""
        return _walked(self._tables.closing_SV, self._tables.roots[variant], ids[-tags.window :])

    def read(self, slots_B: Tensor, tokens_B: Tensor, new_B: Tensor) -> None:
        """Take one more token of each of these turns, where there is a new one."""
        turns = self._read(self.of(slots_B), tokens_B, new_B)
        self._turns[slots_B] = torch.stack(turns, dim=1)

    def of(self, slots_B: Tensor) -> Turns:
        """Return what is known of the turns in these slots."""
        return Turns(*self._turns[slots_B].unbind(dim=1))

    def close(self, logits_RV: Tensor, turns: Turns) -> None:
        """Make the next token of these turns, which have a row of logits each, certain where the rule inserts one."""
        place = turns.size - turns.start
        inserts = (turns.start >= 0) & (place < self._forced_S[turns.at_start])
        token = self._forced_SF[turns.at_start, place.clamp(0, self._forced_SF.shape[1] - 1)]
        token = torch.where(inserts, token, 0)[:, None]
        value = logits_RV.gather(1, token)
        logits_RV.scatter_(1, token, torch.where(inserts[:, None], value.new_tensor(CERTAIN), value))

    def drafted(self, turns: Turns, tokens_RD: Tensor, given_RD: Tensor) -> Turns:
        """Return what would be known of turns that went on with drafts: `tokens_RD`, those that `given_RD` says."""
        for tokens_R, given_R in zip(tokens_RD.unbind(dim=1), given_RD.unbind(dim=1), strict=True):
            turns = self._read(turns, tokens_R, given_R)
        return turns

    def _read(self, turns: Turns, tokens_B: Tensor, new_B: Tensor) -> Turns:
        """Return what is known of turns after a token of each: the same operations whatever they are."""
        size = turns.size + new_B
        reads = new_B & (turns.begin < 0) & (size <= self._tags[0].reach)
        opening = torch.where(reads, self._opening_SV[turns.opening, tokens_B].long(), turns.opening)
        begin = torch.where(reads & (opening == self._tables.opened), size, turns.begin)
        closing = torch.where(new_B, self._closing_SV[turns.closing, tokens_B].long(), turns.closing)
        length = size - begin
        at_end = (length == turns.latest) | (self._line_end_V[tokens_B] & (length > 0))
        ends = new_B & (turns.start < 0) & (begin >= 0) & (length >= turns.tokens) & at_end
        return Turns(
            size=size,
            tokens=turns.tokens,
            latest=turns.latest,
            opening=opening,
            begin=begin,
            closing=closing,
            start=torch.where(ends, size, turns.start),
            at_start=torch.where(ends, closing, turns.at_start),
        )


def _walked(steps_SV: np.ndarray[tuple[int, int], np.dtype[np.int16]], state: int, ids: Sequence[int]) -> int:
    """Return the state that some tokens lead to."""
    for token in ids:
        state = int(steps_SV[state, token])
    return state
