"""The Mamba-2 scan on a CPU: transformers' reference path with fewer copies.

On a GPU the kernels of `mamba-ssm` are used instead. Suffixes: K chunks, L positions in a chunk, H heads, P channels of a
head, N state, G groups of heads that share B and C.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN
from transformers.models.nemotron_h import modeling_nemotron_h

from temper.learner.models.kernels import Device, find_kernel, training_device

REFERENCE: Callable[..., Any] = modeling_nemotron_h.mamba2_chunk_scan
CONVOLUTION: Callable[..., Any] = modeling_nemotron_h.causal_conv1d_fn


def chunk_scan(
    x_BTHP: torch.Tensor,
    dt_BTH: torch.Tensor,
    a_H: torch.Tensor,
    b_BTGN: torch.Tensor,
    c_BTGN: torch.Tensor,
    *,
    chunk_size: int,
    d_H: torch.Tensor,
    initial_BHPN: torch.Tensor | None = None,
    sequences_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y_t = c_t . h_t + d x_t with h_t = exp(a dt_t) h_(t-1) + dt_t b_t x_t; `dt` is positive.

    Return y and the final h. The first h is `initial_BHPN`, such as the final h of another scan, or 0. `sequences_BT` has
    the number of each position's sequence, so that a new number resets h to 0.

    The state-space duality of Dao and Gu, "Transformers are SSMs" (2024), section 6: a masked matrix product inside a chunk,
    the recurrence between chunks. It is fast because scores are computed once per group, the states of a group's heads are
    columns of one product, and even chunks need little padding.
    """
    chunks = _Chunks(x_BTHP, dt_BTH, a_H, b_BTGN, c_BTGN, chunk_size=chunk_size, sequences_BT=sequences_BT)
    y_BTHP, final_BHPN = chunks.outputs(initial_BHPN)
    return y_BTHP + d_H[:, None] * x_BTHP, final_BHPN


class _Chunks:
    """A batch of rows cut into even chunks. In padding dt and x are 0, so the state stays unchanged.

    Several sequences in a row do not mix: within a chunk by a mask, and a state only reaches positions of the sequence that
    it comes from.
    """

    def __init__(
        self,
        x_BTHP: torch.Tensor,
        dt_BTH: torch.Tensor,
        a_H: torch.Tensor,
        b_BTGN: torch.Tensor,
        c_BTGN: torch.Tensor,
        *,
        chunk_size: int,
        sequences_BT: torch.Tensor | None = None,
    ) -> None:
        self.batch, self.length, self.heads, self.channels = x_BTHP.shape
        self.groups, self.state = b_BTGN.shape[2:]
        self.count = -(-self.length // chunk_size)
        self.size = -(-self.length // self.count)
        self.x = self._to_chunks(x_BTHP * dt_BTH[..., None])  # (B K, L, H, P)
        self.b = self._to_chunks(b_BTGN).transpose(1, 2)  # (B K, G, L, N)
        self.c = self._to_chunks(c_BTGN).transpose(1, 2)
        self.visible = torch.ones(self.size, self.size, dtype=torch.bool, device=x_BTHP.device).tril()  # (L, L)
        self.entered: torch.Tensor | None = None
        self.left: torch.Tensor | None = None
        self.kept: torch.Tensor | None = None
        decays = self._to_chunks((a_H * dt_BTH)[..., None])[..., 0]
        if sequences_BT is None:
            self.decay = decays.cumsum(1)  # (B K, L, H)
        else:
            self._separate(sequences_BT)
            self.decay = self.visible[:, 0].to(decays.dtype) @ decays  # rounded like the sequence alone

    def _separate(self, sequences_BT: torch.Tensor) -> None:
        """Find the positions of each chunk whose sequence began before it, and the positions of its last sequence."""
        padded = functional.pad(sequences_BT, (0, self.count * self.size - self.length), value=-1)
        numbers = padded.view(self.batch, self.count, self.size)
        last = numbers[..., -1:]
        before = functional.pad(last[:, :-1], (0, 0, 1, 0), value=-1)
        self.kept = (last == before)[..., None, None, None]  # (B, K, 1, 1, 1, 1)
        self.entered = (numbers == before).view(-1, self.size, 1)
        self.left = (numbers == last).view(-1, self.size, 1)
        own = numbers.view(-1, 1, self.size)
        self.visible = self.visible & (own.transpose(1, 2) == own)[:, None]  # (B K, 1, L, L)

    def _to_chunks(self, tensor: torch.Tensor) -> torch.Tensor:
        pad = self.count * self.size - self.length
        padded = functional.pad(tensor, (0, 0, 0, 0, 0, pad)) if pad else tensor
        return padded.reshape(self.batch * self.count, self.size, *tensor.shape[2:])

    def outputs(self, initial_BHPN: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y without d x, shape (B, T, H, P), and the final state, (B, H, P, N)."""
        starts, final_BHPN = self.states(initial_BHPN)
        y = self.own_outputs()
        if self.count > 1 or initial_BHPN is not None:
            y = y + self.outputs_of(starts)
        y = y.reshape(self.batch, self.count * self.size, self.heads, self.channels)
        return y[:, : self.length], final_BHPN

    def own_outputs(self) -> torch.Tensor:
        """Return the contribution of a chunk's positions to its outputs; shape (B K, L, H, P)."""
        rows = self.decay.transpose(1, 2)
        decays = _exp(rows[..., :, None] - rows[..., None, :], self.visible)
        scores = (self.c @ self.b.transpose(-1, -2)).repeat_interleave(self.heads // self.groups, dim=1)
        return ((scores * decays) @ self.x.transpose(1, 2)).transpose(1, 2)

    def states(self, initial_BHPN: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the state at the start of each chunk, shape (B K, G, N, columns), and the final one, (B, H, P, N)."""
        each = self.heads // self.groups
        total = self.decay[:, -1:]  # (B K, 1, H)
        weighted = self.x * _exp(total - self.decay, self.left)[..., None]
        columns = weighted.view(-1, self.size, self.groups, each * self.channels).transpose(1, 2)
        shape = (self.batch, self.count, self.groups, self.state, each, self.channels)
        added = (self.b.transpose(-1, -2) @ columns).view(shape)
        keep = _exp(total.view(self.batch, self.count, self.groups, 1, each, 1), self.kept)
        if initial_BHPN is None:
            carry = torch.zeros_like(added[:, 0])
        else:
            by_group = initial_BHPN.view(self.batch, self.groups, each, self.channels, self.state)
            carry = by_group.permute(0, 1, 4, 2, 3).to(added.dtype)
        starts = []
        for chunk in range(self.count):
            starts.append(carry)
            carry = carry * keep[:, chunk] + added[:, chunk]
        final_BHPN = carry.permute(0, 1, 3, 4, 2).reshape(self.batch, self.heads, self.channels, self.state)
        before = torch.stack(starts, dim=1).view(-1, self.groups, self.state, each * self.channels)
        return before, final_BHPN

    def outputs_of(self, starts: torch.Tensor) -> torch.Tensor:
        """Return the contribution of each chunk's initial state to its outputs; shape (B K, L, H, P)."""
        y = (self.c @ starts).transpose(1, 2).reshape(-1, self.size, self.heads, self.channels)
        return y * _exp(self.decay, self.entered)[..., None]


def _exp(exponents: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the exponential, and 0 outside of a mask."""
    return (exponents if mask is None else exponents.masked_fill(~mask, float("-inf"))).exp()


def convolve(
    x_BCT: torch.Tensor,
    weight_CK: torch.Tensor,
    bias_C: torch.Tensor | None = None,
    activation: str | None = None,
    seq_idx: torch.Tensor | None = None,
    **rest: Any,
) -> torch.Tensor:
    """Compute transformers' causal convolution. `seq_idx` has the number of each position's sequence: they do not mix."""
    if seq_idx is None:
        convolved: torch.Tensor = CONVOLUTION(x_BCT, weight_CK, bias_C, activation=activation, **rest)
        return convolved
    weight_CK = weight_CK.to(torch.promote_types(weight_CK.dtype, torch.float32))  # rounded once, as by kernels
    x_BTC = x_BCT.transpose(1, 2).to(weight_CK.dtype)
    y_BTC = x_BTC * weight_CK[:, -1]
    for back in range(1, min(weight_CK.shape[1], x_BTC.shape[1])):
        same_BT = seq_idx[:, back:] == seq_idx[:, :-back]
        earlier_BTC = x_BTC[:, :-back] * same_BT[..., None] * weight_CK[:, -1 - back]
        y_BTC = y_BTC + functional.pad(earlier_BTC, (0, 0, back, 0))
    if bias_C is not None:
        y_BTC = y_BTC + bias_C
    if activation is not None:
        y_BTC = ACT2FN[activation](y_BTC)
    return y_BTC.transpose(1, 2).to(x_BCT.dtype)


def match_engine(model: torch.nn.Module) -> None:
    """Limit the time step of transformers' Nemotron-H Mamba-2 layers as the configuration and vLLM do.

    transformers clamps it at `time_step_min`, which is meant only for initial values. For smaller steps trainer and engine
    would differ, by up to 5e-5 nats in a small model.
    """
    for module in model.modules():
        if isinstance(module, modeling_nemotron_h.NemotronHMamba2Mixer):
            low, high = module.config.time_step_limit
            module.time_step_limit = (float(low), float(high))


def install(*, recompute: bool = False, device: Device | None = None) -> None:
    """Make transformers' Nemotron-H use these scans on a CPU, instead of its reference path.

    With `recompute` a scan keeps only its arguments and runs again in the backward pass. On a GPU (`device` None: this
    machine's training device) `mamba-ssm` scans. Its kernel of a whole layer needs `causal-conv1d`, so without that package
    convolution, scan and norm run one after the other.
    """
    if (device or training_device()) == "cuda":
        if find_kernel(CONVOLUTION) == ("causal_conv1d", False):
            modeling_nemotron_h.causal_conv1d_fn = convolve
            # None means that there is no kernel of a whole layer, as in transformers' reference
            modeling_nemotron_h.mamba2_split_conv1d_scan_combined = lambda *_, **__: None
        return
    modeling_nemotron_h.causal_conv1d_fn = convolve
    modeling_nemotron_h.mamba2_chunk_scan = partial(checkpoint, scan, use_reentrant=False) if recompute else scan


def separates_sequences() -> bool:
    """Return whether the Mamba-2 layers of this process keep the sequences of a row apart, by `seq_idx`."""
    used = modeling_nemotron_h.mamba2_chunk_scan, modeling_nemotron_h.causal_conv1d_fn
    return all((find_kernel(one) or ("", True))[1] for one in used)


def scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    chunk_size: int,
    **rest: Any,
) -> Any:
    """Compute `chunk_scan` with the signature of transformers' scan."""
    sequences = rest.get("seq_idx")
    if rest.get("D") is None:
        assert sequences is None, "the reference has one sequence a row"
        return REFERENCE(x, dt, a, b, c, chunk_size, **rest)
    low, high = rest.get("dt_limit", (0.0, float("inf")))
    biased = dt + rest["dt_bias"] if rest.get("dt_bias") is not None else dt
    positive = functional.softplus(biased) if rest.get("dt_softplus") else biased
    y, final = chunk_scan(
        x.float(),
        positive.clamp(low, high).float(),
        a,
        b.float(),
        c.float(),
        chunk_size=chunk_size,
        d_H=rest["D"],
        initial_BHPN=rest.get("initial_states"),
        sequences_BT=sequences,
    )
    return (y, final) if rest.get("return_final_states") else y
