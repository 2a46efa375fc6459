"""Attention inside sequences whose borders an attention mask holds: packed rows, and answers behind their prompts.

The mask is in the host's memory, so no layer waits for the device. Suffixes: `_S` sequence, `_NHD` token of the pass, head
and width.
"""

from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import accumulate, groupby
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from temper.learner.models.sequence_parallel import SequenceGroup, attend_by_heads

BORDERS = torch.int32
"""Type of an attention mask with borders, shape (1, 1, 2, sequences + 1): the starts and the end, of queries and of keys."""
KERNEL_ARGUMENTS = {"window_size"}
"""Needed arguments of torch's flash attention that its older releases do not have."""
Sides = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key and value of a pass, each (N, heads, width)."""
FEWER_KEYS: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""Lets torch's kernel take fewer heads of keys than of queries. torch 2.11 does so without the argument."""


def border_mask(queries_S: Sequence[int], keys_S: Sequence[int] | None = None) -> torch.Tensor:
    """Return a mask of sequences with these numbers of queries and of keys, by default as many.

    The last query of a sequence sees all its keys, and each query before it one key less.
    """
    borders = [[0, *accumulate(own)] for own in (queries_S, queries_S if keys_S is None else keys_S)]
    return torch.tensor(borders, dtype=BORDERS, pin_memory=torch.cuda.is_available())[None, None]


def lengths_in(attention_mask: Any) -> tuple[list[int], list[int]] | None:
    """Return the numbers of queries and of keys of the sequences in a mask, or None for other masks."""
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.dtype != BORDERS or attention_mask.ndim != 4:
        return None
    assert attention_mask.device.type == "cpu", "borders on a device would stop it in each layer"
    queries_S, keys_S = attention_mask[0, 0].diff().tolist()
    return queries_S, keys_S


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    group: SequenceGroup | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' fused attention, sequence by sequence if the mask holds borders.

    Queries and keys each have the sequences end to end in their rows. A query with fewer tokens than the sequences is the
    shard of a rank.
    """
    lengths = lengths_in(attention_mask)
    if attention_mask is None or lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **rest)
    rows, _, tokens, _ = query.shape
    if sum(lengths[0]) > rows * tokens:
        assert group is not None
        return attend_by_heads(
            group, lambda q, k, v: attend(module, q, k, v, attention_mask, **rest)[0], query, key, value
        ), None
    sides = query_NHD, key_NHD, value_NHD = _end_to_end(query), _end_to_end(key), _end_to_end(value)
    if query.is_cuda and query.dtype != torch.float32 and not rest.get("dropout"):
        borders = attention_mask[0, 0]
        output_NHD = _attend_by_kernel(query_NHD, key_NHD, value_NHD, borders, lengths, rest.get("scaling"))
    else:
        output_NHD = _attend_in_turn(module, sides, lengths, **rest)
    return output_NHD.unflatten(0, (rows, tokens)), None


def _end_to_end(values: torch.Tensor) -> torch.Tensor:
    """Turn rows (B, heads, T, width) into (N, heads, width)."""
    return values.transpose(1, 2).flatten(0, 1)


def _attend_by_kernel(
    query_NHD: torch.Tensor,
    key_NHD: torch.Tensor,
    value_NHD: torch.Tensor,
    borders: torch.Tensor,
    lengths: tuple[list[int], list[int]],
    scaling: float | None,
) -> torch.Tensor:
    """Call torch's flash attention. It aligns the last query of a sequence with its last key and repeats no key."""
    of_queries, of_keys = borders.to(query_NHD.device, non_blocking=True)
    output = varlen_attn(
        query_NHD,
        key_NHD,
        value_NHD,
        of_queries,
        of_keys,
        max(lengths[0]),
        max(lengths[1]),
        scale=scaling,
        window_size=(-1, 0),
        **FEWER_KEYS,
    )
    assert isinstance(output, torch.Tensor)
    return output


def _attend_in_turn(
    module: torch.nn.Module, sides: Sides, lengths: tuple[list[int], list[int]], **rest: Any
) -> torch.Tensor:
    """Compute the same as the kernel. On a CPU this is faster than a pass over all sequences that hides most scores."""
    outputs_NHD = []
    for count, queries, keys, own in _equal_sequences(sides, lengths):
        mask = None  # the last query alone sees all keys, and as many queries as keys are causal
        if 1 < queries < keys:
            mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=own[0].device).tril(keys - queries)
        query, key, value = (one.unflatten(0, (count, -1)).transpose(1, 2) for one in own)
        outputs_NHD.append(sdpa_attention_forward(module, query, key, value, mask, **rest)[0].flatten(0, 1))
    return torch.cat(outputs_NHD)


def _equal_sequences(sides: Sides, lengths: tuple[list[int], list[int]]) -> Iterator[tuple[int, int, int, Sides]]:
    """Yield neighbours of equal lengths: their number, the queries and keys of each, and their part of the sides."""
    query_NHD, key_NHD, value_NHD = sides
    first_query = first_key = 0
    for (queries, keys), equal in groupby(zip(*lengths, strict=True)):
        count = len(list(equal))
        of_queries = slice(first_query, first_query + count * queries)
        of_keys = slice(first_key, first_key + count * keys)
        yield count, queries, keys, (query_NHD[of_queries], key_NHD[of_keys], value_NHD[of_keys])
        first_query, first_key = of_queries.stop, of_keys.stop
