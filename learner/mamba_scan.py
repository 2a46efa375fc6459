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
    product, between chunks the recurrence. What makes it fast: scores are computed once per group, not per head; the
    states of a group's heads are columns of one product; and the sequence is cut into even chunks, so that little is
    padded.
    """
    batch, length, heads, channels = x_BTHP.shape
    groups = b_BTGN.shape[2]
    chunks = -(-length // chunk_size)
    size = -(-length // chunks)
    pad = chunks * size - length

    def chunked(tensor: torch.Tensor) -> torch.Tensor:
        """(B, T, n, width) to (B K, L, n, width)."""
        padded = functional.pad(tensor, (0, 0, 0, 0, 0, pad)) if pad else tensor
        return padded.reshape(batch * chunks, size, *tensor.shape[2:])

    x = chunked(x_BTHP * dt_BTH[..., None])
    b, c = chunked(b_BTGN).transpose(1, 2), chunked(c_BTGN).transpose(1, 2)  # (B K, G, L, N)
    decay = chunked((a_H * dt_BTH)[..., None])[..., 0].cumsum(1)  # (B K, L, H)
    rows = decay.transpose(1, 2)
    causal_LL = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
    gaps = (rows[..., :, None] - rows[..., None, :]).masked_fill(~causal_LL, float("-inf"))
    scores = (c @ b.transpose(-1, -2)).repeat_interleave(heads // groups, dim=1)
    y = ((scores * gaps.exp()) @ x.transpose(1, 2)).transpose(1, 2)  # (B K, L, H, P)
    if chunks > 1:
        y = y + _from_earlier_chunks(x, b, c, decay, chunks=chunks)
    y_BTHP = y.reshape(batch, chunks * size, heads, channels)[:, :length]
    return y_BTHP + d_H[:, None] * x_BTHP


def _from_earlier_chunks(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, decay: torch.Tensor, *, chunks: int
) -> torch.Tensor:
    """What the state at the start of each chunk adds to its outputs; shape of `x`: (B K, L, H, P)."""
    size, heads, channels = x.shape[1:]
    groups, state = b.shape[1], b.shape[3]
    columns = heads // groups * channels
    total = decay[:, -1:]  # (B K, 1, H)
    weighted = (x * (total - decay).exp()[..., None]).view(-1, size, groups, columns).transpose(1, 2)
    added = (b.transpose(-1, -2) @ weighted).view(-1, chunks, groups, state, heads // groups, channels)
    keep = total.exp().view(-1, chunks, groups, 1, heads // groups, 1)
    carry, starts = torch.zeros_like(added[:, 0]), []
    for chunk in range(chunks):
        starts.append(carry)
        carry = carry * keep[:, chunk] + added[:, chunk]
    before = torch.stack(starts, dim=1).view(-1, groups, state, columns)
    return (c @ before).transpose(1, 2).reshape(-1, size, heads, channels) * decay.exp()[..., None]


def match_engine(model: torch.nn.Module) -> None:
    """Let every Mamba-2 layer of transformers' Nemotron-H limit its time step as the configuration and vLLM do.

    transformers clamps it from below at `time_step_min`, which is meant for the initial values only: wherever a token's
    step is smaller, trainer and engine would disagree, by up to 5e-5 nats in a small model.
    """
    for module in model.modules():
        if isinstance(module, modeling_nemotron_h.NemotronHMamba2Mixer):
            low, high = module.config.time_step_limit
            module.time_step_limit = (float(low), float(high))


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
