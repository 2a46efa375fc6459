"""Stop strings of continued turns: the same end as a search through the whole text, with few decodes."""

import random
from collections.abc import Sequence

import pytest

from temper.rollout.engines.protocol import Completion, cut_at_stop

PIECES = ["a", "b", "ab", "ba", "aab", "b\n", " ", "ab ab"]


def text(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def said(ids: Sequence[int]) -> Completion:
    return Completion(token_ids=tuple(ids), logprobs_T=(-0.5,) * len(ids), versions_T=(0,) * len(ids), finished=False)


def first_end(ids: Sequence[int], stop: Sequence[str]) -> int | None:
    """Number of tokens after which the whole text has a stop string, by decoding every prefix."""
    return next((n for n in range(1, len(ids) + 1) if any(one in text(ids[:n]) for one in stop)), None)


@pytest.mark.parametrize("seed", range(4))
def test_a_turn_that_goes_on_ends_where_the_whole_one_would(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        check(draw)


def check(draw: random.Random) -> None:
    stop = ["".join(draw.choices("ab \n", k=draw.randint(1, 6))) for _ in range(draw.randint(1, 3))]
    ids = draw.choices(range(len(PIECES)), k=40)
    ids = ids[: first_end(ids, stop)]  # the engine that started it went no further
    prefix_ids = ids[: draw.randint(0, len(ids) - 1)]
    rest = draw.choices(range(len(PIECES)), k=20)
    rest = rest[: first_end(rest, stop)]  # the one that continues sees only its own tokens
    if first_end(prefix_ids, stop) is not None:
        prefix_ids = []
    found = cut_at_stop(said(rest), prefix_ids, stop, text)
    end = first_end([*prefix_ids, *rest], stop)
    assert len(found.token_ids) == (len(rest) if end is None or not prefix_ids else end - len(prefix_ids))


def decodes(tokens: int) -> tuple[int, int]:
    """Number of decodes for the rest of a turn of this length, and their tokens."""
    asked: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        asked.append(len(ids))
        return text(ids)

    cut_at_stop(said([0] * tokens), [0] * tokens, ["bbb", "b\nb"], counted)
    return len(asked), sum(asked)


def test_decodes_do_not_grow_with_the_turn() -> None:
    assert decodes(8000) == decodes(100)
