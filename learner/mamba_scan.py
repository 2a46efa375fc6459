"""The Mamba-2 scan on a CPU: the same sums as transformers' reference path, with fewer copies.

Where the CUDA kernels of `mamba-ssm` are installed they are used and nothing here is. Suffixes: K chunks, L positions in
a chunk, H heads, P channels of a head, N state, G groups of heads that share B and C.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers.models.nemotron_h import modeling_nemotron_h


def chunk_scan(
    x_BTHP: torch.Tensor,
    dt_BTH: torch.Tensor,
    a_H: torch.Tensor,
    b_BTGN: torch.Tensor,
    c_BTGN: torch.Tensor,
    *,
    chunk_size: int,
    d_H: torch.Tensor,
) -> torch.Tensor:
    """y_t = c_t . h_t + d x_t with h_t = exp(a dt_t) h_(t-1) + dt_t b_t x_t, from h = 0; `dt` is already positive.

    The state-space duality of Dao and Gu, "Transformers are SSMs" (2024), section 6: inside a chunk a masked matrix
    product, between chunks the recurrence. What makes it fast: scores are computed once per group, not per head, heads
    stand before positions so that each product is one batched matrix product without copies, and the sequence is cut
    into even chunks, so that little is padded.
    """
    batch, length, heads, channels = x_BTHP.shape
    groups, state = b_BTGN.shape[2:]
    chunks = -(-length // chunk_size)
    size = -(-length // chunks)
    pad = chunks * size - length

    def chunked(tensor: torch.Tensor, width: int) -> torch.Tensor:
        """(B, T, n, width) to (B, K, n, L, width)."""
        padded = functional.pad(tensor, (0, 0, 0, 0, 0, pad)) if pad else tensor
        return padded.reshape(batch, chunks, size, -1, width).transpose(2, 3)

    x = chunked(x_BTHP * dt_BTH[..., None], channels)
    b, c = chunked(b_BTGN, state), chunked(c_BTGN, state)
    decay_BKHL = chunked((a_H * dt_BTH)[..., None], 1)[..., 0].cumsum(-1)
    causal_LL = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
    gaps = (decay_BKHL[..., :, None] - decay_BKHL[..., None, :]).masked_fill(~causal_LL, float("-inf"))
    scores_BKGLL = c @ b.transpose(-1, -2)
    per_group = (batch, chunks, groups, heads // groups)
    mixed = (scores_BKGLL[:, :, :, None] * gaps.exp().view(*per_group, size, size)).view(*gaps.shape)
    y = mixed @ x
    if chunks > 1:
        y = y + _from_earlier_chunks(x, b, c, decay_BKHL, per_group=per_group)
    y_BTHP = y.transpose(2, 3).reshape(batch, chunks * size, heads, channels)[:, :length]
    return y_BTHP + d_H[:, None] * x_BTHP


def _from_earlier_chunks(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, decay_BKHL: torch.Tensor, *, per_group: tuple[int, ...]
) -> torch.Tensor:
    """What the state at the start of each chunk adds to its outputs; shape of `x`: (B, K, H, L, P)."""
    total = decay_BKHL[..., -1:]
    weighted = (x * (total - decay_BKHL).exp()[..., None]).view(*per_group, *x.shape[-2:])
    added = (b.transpose(-1, -2)[:, :, :, None] @ weighted).flatten(2, 3)
    carry, starts = torch.zeros_like(added[:, 0]), []
    for chunk in range(x.shape[1]):
        starts.append(carry)
        carry = carry * total[:, chunk, :, :, None].exp() + added[:, chunk]
    before = torch.stack(starts, dim=1).view(*per_group, *added.shape[-2:])
    return (c[:, :, :, None] @ before).flatten(2, 3) * decay_BKHL.exp()[..., None]


def install() -> None:
    """Let transformers' Nemotron-H use `chunk_scan` where it would fall back to its reference path without a cache."""
    reference: Callable[..., Any] = modeling_nemotron_h.mamba2_chunk_scan
    if torch.cuda.is_available() or getattr(reference, "is_temper", False):
        return

    def scan(
        x: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        chunk_size: int,
        **rest: Any,
    ) -> Any:
        if rest.get("return_final_states") or rest.get("initial_states") is not None or rest.get("D") is None:
            return reference(x, dt, a, b, c, chunk_size, **rest)
        low, high = rest.get("dt_limit", (0.0, float("inf")))
        biased = dt + rest["dt_bias"] if rest.get("dt_bias") is not None else dt
        positive = functional.softplus(biased) if rest.get("dt_softplus") else biased
        dt_BTH = positive.clamp(low, high).float()
        return chunk_scan(x.float(), dt_BTH, a, b.float(), c.float(), chunk_size=chunk_size, d_H=rest["D"])

    scan.is_temper = True  # type: ignore[attr-defined]
    modeling_nemotron_h.mamba2_chunk_scan = scan
