"""The thinking limit on tensors equals the rule, token by token, over turns of any kind."""

import random

import pytest
import torch
from transformers import PreTrainedTokenizerBase
from unit.rollout.budget.test_rule import ONE_TOKEN, SPELT_OUT, opening_itself

from temper.rollout.budget.limited_turns import CERTAIN, LimitedTurns, token_bytes
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags

SIZE = 300
"""Size of the model's vocabulary, larger than the tokenizer's."""
OFTEN = ["a", "7+8", " ", "\n", "<", "<thi", "nk>", "</thi", "I stop", ".\n", "\u2581", "\u3000"]
PIECES = [*OFTEN, *OFTEN, "<think>", "</think>\n"]
CLOSINGS = [
    None,
    "</think>",
    " \nI stop here, as there is no time left to think about it any more: \u2581.\n</think>\n\n",
]


def drawn(rng: random.Random, tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[int]:
    """Random tokens of a turn, most of them relevant to the rule, some without text."""
    ids: list[int] = []
    while len(ids) < tokens:
        piece = rng.choice(PIECES)
        ids += tokenizer(piece, add_special_tokens=False)["input_ids"] if rng.random() < 0.9 else [rng.randrange(SIZE)]
    return ids[:tokens]


def injected_token(tags: ThinkingTags, limit: ThinkingLimit, ids: list[int], *, opened: bool) -> int | None:
    """The token that the rule injects after a turn's beginning."""
    close = tags.forced_end(ids, limit, opened=opened)
    place = None if close is None else len(ids) - close.start
    return None if close is None or place is None or place >= len(close.ids) else close.ids[place]


def chosen(logits_RV: torch.Tensor) -> list[int | None]:
    """The forced token of each row, or None."""
    assert ((logits_RV == CERTAIN).sum(1) <= 1).all()
    assert (logits_RV[logits_RV != CERTAIN] == 0).all()
    return [int(row.argmax()) if row.max() == CERTAIN else None for row in logits_RV]


@pytest.mark.parametrize("closing", CLOSINGS, ids=["template", "tag", "long"])
@pytest.mark.parametrize(
    "tokenizer", [ONE_TOKEN, SPELT_OUT, opening_itself()], ids=["one token", "spelt out", "opens itself"]
)
def test_turns_are_closed_where_the_rule_closes_them(tokenizer: PreTrainedTokenizerBase, closing: str | None) -> None:
    rng = random.Random(1)
    tags = [ThinkingTags(tokenizer, closing=closing), ThinkingTags(tokenizer, closing="</think>")]
    prompts = [
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("ask <think>\n", "ask <think>\n", "ask\n")
    ]
    slots, drafts = 40, 2
    turns = LimitedTurns(tokenizer, tags, vocabulary=SIZE, slots=slots + 1, device=torch.device("cpu"))
    limits = [ThinkingLimit(tokens=rng.choice([0, 1, 3, 9, 20]), grace=rng.choice([0, 0, 4, 9])) for _ in range(slots)]
    contexts, variants = [rng.choice(prompts) for _ in limits], [rng.randrange(2) for _ in limits]
    opened = [tags[0].is_opened_by(context) for context in contexts]
    said = [drawn(rng, tokenizer, rng.choice([0, 0, 0, 5, 40])) for _ in limits]
    turns.put(
        range(slots),
        [
            turns.start_turn(*each, variant=variant)
            for *each, variant in zip(limits, contexts, said, variants, strict=True)
        ],
    )
    places, forced = torch.arange(slots + 1), 0
    for _ in range(25):
        guesses = [drawn(rng, tokenizer, drafts) for _ in limits]
        rows = torch.zeros((slots + 1) * (drafts + 1), SIZE)
        local = torch.arange(len(rows)) % (drafts + 1)
        tokens_RD = torch.tensor([*guesses, [0] * drafts]).repeat_interleave(drafts + 1, dim=0)
        given_RD = torch.arange(drafts)[None] < local[:, None]
        turns.close(rows, turns.read_drafts(turns.of(places.repeat_interleave(drafts + 1)), tokens_RD, given_RD))
        inserted = chosen(rows)
        step = []
        for slot, (limit, ids, guess) in enumerate(zip(limits, said, guesses, strict=True)):
            ruled = [
                injected_token(tags[variants[slot]], limit, ids + guess[:count], opened=opened[slot])
                for count in range(drafts + 1)
            ]
            assert inserted[slot * (drafts + 1) :][: drafts + 1] == ruled, (slot, limit, ids, guess)
            forced += ruled[0] is not None
            step.append(drawn(rng, tokenizer, 1)[0] if ruled[0] is None else ruled[0])
        assert inserted[slots * (drafts + 1) :] == [None] * (drafts + 1)  # a turn without a limit
        new = torch.tensor([rng.random() < 0.9 for _ in limits] + [True])  # some wait in this pass
        turns.read(places, torch.tensor([*step, 5]), new)
        for ids, token, reads in zip(said, step, new.tolist(), strict=False):
            ids += [token] * reads
    assert forced > 20


def test_what_tokens_write_is_known_to_the_byte() -> None:
    pieces = token_bytes(ONE_TOKEN, SIZE)
    text = "<think>\n12\u00e9\u3000</think>"
    assert b"".join(pieces[token] for token in ONE_TOKEN(text, add_special_tokens=False)["input_ids"]) == text.encode()
    assert (len(pieces), pieces[SIZE - 1]) == (SIZE, b"")
