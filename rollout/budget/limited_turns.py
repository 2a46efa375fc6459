"""Thinking limits for many turns at once: the rule of `rollout/budget/rule.py` on tensors.

Each turn has a slot: a row of integers on the engine's device. A few operations over all slots read one token of every
turn, without synchronization.

Two tables track the opening and the closing of the thinking. They are automata over bytes (Aho and Corasick, "Efficient
string matching", 1975), compiled to tokens: one row per state and one column per token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags

Steps = NDArray[np.int16]
"""Next state for each state and byte, or token."""
NEVER: Final = 0
"""State of an opening: the turn does not think."""
ENDED: Final = 0
"""State of a closing: the thinking has ended."""
BYTES: Final = 256
UNKNOWN: Final = "\ufffd"
SPACES: Final = tuple(chr(code).encode() for code in range(0x3001) if chr(code).isspace())


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTables:
    """The rule over tokens. `_S`: one entry per state; `_V`: one per token; `_F`: one per token of a closing.

    `opening_SV` tracks the opening tag; `opened` is its final state. `closing_SV` tracks the part of a closing at the end
    of the turn; `roots` holds each closing's first state. In a state, the first `injected_S` tokens of `injected_SF`
    complete the closing.
    """

    opening_SV: Steps
    opened: int
    unopened: int
    closing_SV: Steps
    roots: tuple[int, ...]
    line_end_V: NDArray[np.bool_]
    injected_SF: NDArray[np.int64]
    injected_S: NDArray[np.int64]


def limit_tables(tokenizer: PreTrainedTokenizerBase, tags: Sequence[ThinkingTags], *, size: int) -> LimitTables:
    """Return the tables of a tokenizer with a vocabulary of `size` tokens. `tags` differ only in their closing."""
    pieces = token_bytes(tokenizer, size)
    opening, opened, unopened = _opening_steps(tags[0].tags.opening.encode())
    closings: list[Steps] = [np.zeros((1, size), dtype=np.int16)]
    forced: list[tuple[int, ...]] = [()]
    roots = []
    for each in tags:
        steps, states = _closing_steps(each)
        over = _over_tokens(steps, pieces)
        if each.tag_id is not None:
            over[:, each.tag_id] = ENDED
        roots.append(len(forced))
        closings.append(np.where(over == ENDED, ENDED, over + np.int16(len(forced) - 1)).astype(np.int16)[1:])
        forced += [each.rest_after(state.decode(errors="replace")) for state in states]
    longest = max(map(len, forced))
    return LimitTables(
        opening_SV=_over_tokens(opening, pieces),
        opened=opened,
        unopened=unopened,
        closing_SV=np.concatenate(closings),
        roots=tuple(roots),
        line_end_V=np.array([b"\n" in piece for piece in pieces]),
        injected_SF=np.array([[*ids, *[0] * (longest - len(ids))] for ids in forced], dtype=np.int64).reshape(
            -1, longest
        ),
        injected_S=np.array([len(ids) for ids in forced], dtype=np.int64),
    )


def token_bytes(tokenizer: PreTrainedTokenizerBase, size: int) -> list[bytes]:
    """Return the bytes of each of `size` tokens inside a text. Unknown tokens have none."""
    (before, *_) = tokenizer("a", add_special_tokens=False)["input_ids"]
    known = min(size, len(tokenizer))
    skipped = len(str(tokenizer.decode([before], skip_special_tokens=False)))
    texts = tokenizer.batch_decode([[before, token] for token in range(known)], skip_special_tokens=False)
    names = tokenizer.convert_ids_to_tokens(list(range(known)))
    of_letters = _bytes_of_letters()
    pieces = [
        _bytes_of_name(name, of_letters) if UNKNOWN in text else text[skipped:].encode()
        for text, name in zip(texts, names, strict=True)
    ]
    return [*pieces, *[b""] * (size - known)]


def _bytes_of_name(name: str, of_letters: dict[str, int]) -> bytes:
    """Return the bytes of a token that is a part of a character. Vocabularies name them in one of two ways."""
    if spelt := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
        return bytes.fromhex(spelt[1])
    return (
        bytes(of_letters[letter] for letter in name) if all(letter in of_letters for letter in name) else name.encode()
    )


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte of each character in a byte-level vocabulary. Invisible bytes map to characters from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    unseen = [byte for byte in range(BYTES) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(BYTES + place): byte for place, byte in enumerate(unseen)}


def _opening_steps(opening: bytes) -> tuple[Steps, int, int]:
    """Return the automaton of an opening tag after white space, with its final and its first state."""
    start_turn = {text[:end] for text in (*SPACES, opening) for end in range(len(text))} - set(SPACES)
    states = {state: number for number, state in enumerate(sorted(start_turn), start=NEVER + 1)}
    opened = len(states) + 1
    steps = np.full((opened + 1, BYTES), NEVER, dtype=np.int16)
    steps[opened] = opened
    for state, number in states.items():
        for byte in range(BYTES):
            text = state + bytes([byte])
            if text in SPACES:
                steps[number, byte] = states[b""]
            elif text == opening:
                steps[number, byte] = opened
            else:
                steps[number, byte] = states.get(text, NEVER)
    return steps, opened, states[b""]


def _closing_steps(tags: ThinkingTags) -> tuple[Steps, list[bytes]]:
    """Return the automaton of a closing at the end of a turn, and the text of each state from 1 on."""
    ends = tags.tags.closing.encode() if tags.tag_id is None else b""
    texts = [tags.closing.encode(), tags.closing.lstrip().encode(), ends]
    start_turn = sorted({text[:end] for text in texts for end in range(len(text) + 1)})
    states = {state: number for number, state in enumerate(start_turn, start=ENDED + 1)}
    steps = np.full((len(states) + 1, BYTES), states[b""], dtype=np.int16)
    steps[ENDED] = ENDED
    for state, number in states.items():
        for byte in {*b"".join(texts)}:
            text = state + bytes([byte])
            while text not in states:
                text = text[1:]
            steps[number, byte] = ENDED if ends and text.endswith(ends) else states[text]
    return steps, start_turn


def _over_tokens(steps: Steps, pieces: Sequence[bytes]) -> Steps:
    """Compile an automaton over bytes to tokens."""
    lengths = np.array([len(piece) for piece in pieces])
    order = np.argsort(-lengths, kind="stable")
    bytes_VB = np.zeros((len(pieces), max(1, int(lengths.max(initial=0)))), dtype=np.uint8)
    for row, token in enumerate(order):
        bytes_VB[row, : lengths[token]] = np.frombuffer(pieces[token], dtype=np.uint8)
    over = np.repeat(np.arange(len(steps), dtype=np.int16)[:, None], len(pieces), axis=1)
    for place in range(bytes_VB.shape[1]):
        live = int((lengths > place).sum())
        over[:, :live] = steps[over[:, :live], bytes_VB[:live, place]]
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return over[:, inverse]


NOWHERE = -1
CERTAIN = 1e9
"""Logit of an injected token: no other token keeps any probability, at any temperature."""


class Turns(NamedTuple):
    """State of some turns; each field is an integer tensor over them.

    `size` counts a turn's tokens. Its thinking, open since `begin`, ends at a line end after `tokens`, or at `latest`.
    `opening` and `closing` are states of `LimitTables`. From `start` on the rest of the closing in state `at_start` is
    injected.
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
"""A slot without a limit."""


class LimitedTurns:
    """The turns of an engine by slot, and its tokenizer's tables on the device."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tags: Sequence[ThinkingTags],
        *,
        vocabulary: int,
        slots: int,
        device: torch.device,
    ) -> None:
        """`tags` differ only in their closing. A turn's variant is an index into them."""
        self._tags = tuple(tags)
        self._tables = limit_tables(tokenizer, tags, size=vocabulary)
        self._opening_SV, self._closing_SV, self._line_end_V, self._injected_SF, self._injected_S = (
            torch.from_numpy(table).to(device)
            for table in (
                self._tables.opening_SV,
                self._tables.closing_SV,
                self._tables.line_end_V,
                self._tables.injected_SF,
                self._tables.injected_S,
            )
        )
        self._turns = torch.stack(FREE).repeat(slots, 1).to(device)

    def put(self, slots: Sequence[int], turns: Sequence[Turns]) -> None:
        if slots:
            device = self._turns.device
            rows = torch.stack([torch.stack(turn) for turn in turns])
            self._turns[torch.tensor(slots).to(device, non_blocking=True)] = rows.to(device, non_blocking=True)

    def start_turn(
        self, limit: ThinkingLimit, context: Sequence[int], ids: Sequence[int], *, variant: int = 0
    ) -> Turns:
        """Return the state of a turn that follows `context` and starts with `ids`."""
        tags = self._tags[variant]
        opened = tags.is_opened_by(context)
        begin = tags.thinking_start(ids, opened=opened)
        close = tags.forced_end(ids, limit, opened=opened)
        tables, ended = self._tables, tags.close_of(ids) is not None
        way = tables.opened if begin is not None else _walk(tables.opening_SV, tables.unopened, ids[: tags.reach])
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

    def _closing(self, tags: ThinkingTags, ids: Sequence[int], variant: int) -> int:
        """Return the closing's state after the last tokens of an open turn."""
        return _walk(self._tables.closing_SV, self._tables.roots[variant], ids[-tags.window :])

    def read(self, slots_B: Tensor, tokens_B: Tensor, new_B: Tensor) -> None:
        """Read one more token of each turn that has a new one."""
        turns = self._read(self.of(slots_B), tokens_B, new_B)
        self._turns[slots_B] = torch.stack(turns, dim=1)

    def of(self, slots_B: Tensor) -> Turns:
        return Turns(*self._turns[slots_B].unbind(dim=1))

    def close(self, logits_RV: Tensor, turns: Turns) -> None:
        """Force the next token of each turn, one row of logits each, if the rule injects one."""
        place = turns.size - turns.start
        inserts = (turns.start >= 0) & (place < self._injected_S[turns.at_start])
        token = self._injected_SF[turns.at_start, place.clamp(0, self._injected_SF.shape[1] - 1)]
        token = torch.where(inserts, token, 0)[:, None]
        value = logits_RV.gather(1, token)
        logits_RV.scatter_(1, token, torch.where(inserts[:, None], value.new_tensor(CERTAIN), value))

    def read_drafts(self, turns: Turns, tokens_RD: Tensor, given_RD: Tensor) -> Turns:
        """Return the states of the turns after the draft tokens `tokens_RD` that `given_RD` marks."""
        for tokens_R, given_R in zip(tokens_RD.unbind(dim=1), given_RD.unbind(dim=1), strict=True):
            turns = self._read(turns, tokens_R, given_R)
        return turns

    def _read(self, turns: Turns, tokens_B: Tensor, new_B: Tensor) -> Turns:
        """Return the states after one token of each turn. The operations do not depend on the data."""
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


def _walk(steps_SV: np.ndarray[tuple[int, int], np.dtype[np.int16]], state: int, ids: Sequence[int]) -> int:
    for token in ids:
        state = int(steps_SV[state, token])
    return state
