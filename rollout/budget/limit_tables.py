"""The rule of `rollout/budget/rule.py` as tables over tokens: what each token makes of where a turn is.

A turn's way through the opening of its thought, and through what closes it, are automata over bytes: Aho and Corasick,
"Efficient string matching", 1975. A table has a row for each state and a column for each token, so that a token of each of many
turns is read with one look-up (`rollout/budget/limited_turns.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from temper.rollout.budget.rule import ThoughtTags

Steps = NDArray[np.int16]
"""A state for each state and each byte, or each token."""
NEVER: Final = 0
"""The state of an opening of a turn that does not open its thought."""
ENDED: Final = 0
"""The state of a closing of a turn whose thought has ended."""
BYTES: Final = 256
UNKNOWN: Final = "\ufffd"
SPACES: Final = tuple(chr(code).encode() for code in range(0x3001) if chr(code).isspace())


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTables:
    """The rule over tokens. `_S`: one entry per state; `_V`: one per token; `_F`: one per token of a closing.

    `opening_SV` says how far a turn is in opening its thought, `opened` is the state behind it. `closing_SV` says how much of
    the closing stands at a turn's end: a closing whose thought ends there begins at `roots`, one for each that there is.
    `forced_SF` are the first `forced_S` tokens of what is then inserted.
    """

    opening_SV: Steps
    opened: int
    unopened: int
    closing_SV: Steps
    roots: tuple[int, ...]
    line_end_V: NDArray[np.bool_]
    forced_SF: NDArray[np.int64]
    forced_S: NDArray[np.int64]


def limit_tables(tokenizer: PreTrainedTokenizerBase, tags: Sequence[ThoughtTags], *, size: int) -> LimitTables:
    """Return the tables of a tokenizer whose model has `size` tokens. `tags` differ in their closing alone."""
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
        forced_SF=np.array([[*ids, *[0] * (longest - len(ids))] for ids in forced], dtype=np.int64).reshape(
            -1, longest
        ),
        forced_S=np.array([len(ids) for ids in forced], dtype=np.int64),
    )


def token_bytes(tokenizer: PreTrainedTokenizerBase, size: int) -> list[bytes]:
    """Return what each of `size` tokens writes behind others; nothing for those that the tokenizer does not know."""
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
    """Return the bytes of a token that is a part of a character: its vocabulary names each byte, in one of two ways."""
    if spelt := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
        return bytes.fromhex(spelt[1])
    return (
        bytes(of_letters[letter] for letter in name) if all(letter in of_letters for letter in name) else name.encode()
    )


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte of each letter in the vocabulary of a byte-level tokenizer, which writes those that can't be seen as
    the letters from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    unseen = [byte for byte in range(BYTES) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(BYTES + place): byte for place, byte in enumerate(unseen)}


def _opening_steps(opening: bytes) -> tuple[Steps, int, int]:
    """Return the automaton of a turn that opens its thought behind white space, its last state and its first."""
    begun = {text[:end] for text in (*SPACES, opening) for end in range(len(text))} - set(SPACES)
    states = {state: number for number, state in enumerate(sorted(begun), start=NEVER + 1)}
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


def _closing_steps(tags: ThoughtTags) -> tuple[Steps, list[bytes]]:
    """Return the automaton of what a turn's end has of the closing, and the ends that its states from 1 on stand for."""
    ends = tags.tags.closing.encode() if tags.tag_id is None else b""
    texts = [tags.closing.encode(), tags.closing.lstrip().encode(), ends]
    begun = sorted({text[:end] for text in texts for end in range(len(text) + 1)})
    states = {state: number for number, state in enumerate(begun, start=ENDED + 1)}
    steps = np.full((len(states) + 1, BYTES), states[b""], dtype=np.int16)
    steps[ENDED] = ENDED
    for state, number in states.items():
        for byte in {*b"".join(texts)}:
            text = state + bytes([byte])
            while text not in states:
                text = text[1:]
            steps[number, byte] = ENDED if ends and text.endswith(ends) else states[text]
    return steps, begun


def _over_tokens(steps: Steps, pieces: Sequence[bytes]) -> Steps:
    """Return the automaton over tokens of one over bytes."""
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
