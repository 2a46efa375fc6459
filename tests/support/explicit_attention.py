"""Attention by an explicit mask, which attention by borders is compared with."""

import torch

BEHIND_PROMPTS = ([7, 7, 7, 3, 3, 1, 1, 1, 1, 1], [16, 16, 16, 3, 9, 1, 5, 5, 31, 31])
"""Queries and keys: answers behind a prompt of 9 tokens, one without a prompt, and answers of one token."""


def explicit_attention(
    query_NHD: torch.Tensor, key_NHD: torch.Tensor, value_NHD: torch.Tensor, queries: list[int], keys: list[int]
) -> torch.Tensor:
    """Softmax over all keys of the pass, under a mask built entry by entry. The last query sees the last key."""
    seen = torch.zeros(sum(queries), sum(keys), dtype=torch.bool)
    for number, (own, others) in enumerate(zip(queries, keys, strict=True)):
        for place in range(own):
            first = sum(keys[:number])
            seen[sum(queries[:number]) + place, first : first + others - own + place + 1] = True
    each = query_NHD.shape[1] // key_NHD.shape[1]
    key, value = (one.repeat_interleave(each, dim=1) for one in (key_NHD, value_NHD))
    scores_HNM = torch.einsum("nhd,mhd->hnm", query_NHD, key) / query_NHD.shape[2] ** 0.5
    return torch.einsum("hnm,mhd->nhd", scores_HNM.masked_fill(~seen, -torch.inf).softmax(-1), value)
