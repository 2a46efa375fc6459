"""Log-probabilities and entropies of tokens, from logits or from hidden states without all logits at once.

Suffixes: `_BT` sequence and token, `_BTV` vocabulary entry too, `_N` scored token, `_ND` hidden size too, `_NV` vocabulary
entry too, `_VD` both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

LogprobsAndEntropies = tuple[torch.Tensor, torch.Tensor]
PART_ROWS = 8192
"""Rows of a half-precision weight that a CPU converts to float32 at once."""
ENTRIES_AT_ONCE = 2**21
"""Logits that are touched together on a CPU, 8 MiB: malloc reuses blocks of this size."""


def token_logprobs(logits_BTV: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token given those before it, float32, shape (B, T), 0 for the first."""
    logits = logits_BTV[:, :-1].float()
    targets = ids_BT[:, 1:]
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return torch.nn.functional.pad(chosen - logits.logsumexp(-1), (1, 0))


def token_entropies(logits_BTV: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of each token's distribution, float32, shape (B, T), 0 for the first."""
    logs = logits_BTV[:, :-1].float().log_softmax(-1)
    return torch.nn.functional.pad(-(logs.exp() * logs).sum(-1), (1, 0))


def vocabulary_scores(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_N: torch.Tensor,
    *,
    entropy: bool,
    tokens: int,
    temperatures_N: torch.Tensor | None = None,
    float32: bool = False,
) -> LogprobsAndEntropies:
    """Return each target's log-probability and entropy in nats under softmax((hidden weight^T + bias) / temperature).

    Both have shape (N,), float32. Without `temperatures_N` all are 1. Without `entropy` the entropy is 0. Logits take much
    memory, so at most `tokens` rows exist at once. More rows are computed in pieces, and again in the backward pass, which
    costs a third of the layer's operations. With `float32` logits are sums in float32 of exact products. On a GPU the
    gradients of a half-precision layer are computed from half-precision operands anyway.
    """
    logprobs_N, entropies_N = _Scored.apply(
        hidden_ND, weight_VD, bias_V, targets_N, temperatures_N, entropy, tokens, float32
    )
    return logprobs_N, entropies_N


def float32_logits(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None) -> torch.Tensor:
    """Return hidden weight^T + bias in float32, without a float32 copy of the weight.

    A product of two half-precision values is exact in float32, so a GPU's tensor cores add the same terms. A CPU converts
    the weight in parts.
    """
    if hidden_ND.dtype == weight_VD.dtype == torch.float32:
        return functional.linear(hidden_ND, weight_VD, bias_V)
    if hidden_ND.is_cuda:
        logits_NV: torch.Tensor = torch.mm(hidden_ND, weight_VD.T, out_dtype=torch.float32)
    else:
        logits_NV = hidden_ND.new_empty(len(hidden_ND), len(weight_VD), dtype=torch.float32)
        for part in _parts(len(weight_VD), PART_ROWS):
            torch.mm(hidden_ND.float(), weight_VD[part].float().T, out=logits_NV[:, part])
    return logits_NV if bias_V is None else logits_NV + bias_V.float()


def _parts(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class _Scored(torch.autograd.Function):
    """Log-probabilities and entropies of targets.

    z is a row of the layer's output over the temperature, p its softmax, y its target and H its entropy. Then
    d log p_y / dz = onehot(y) - p, and dH / dz = -p (log p + H).

    Logits of a single piece are kept for the backward pass, which turns them into their gradient in place. Both passes touch a
    few rows at a time on a CPU, because a new large tensor costs as much there as a sum over it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperatures_N: torch.Tensor | None,
        entropy: bool,
        tokens: int,
        float32: bool,
    ) -> LogprobsAndEntropies:
        layer = _Layer(weight_VD=weight_VD, bias_V=bias_V, float32=float32)
        logprobs_N, sums_N, entropies_N = (hidden_ND.new_zeros(len(targets_N), dtype=torch.float32) for _ in range(3))
        kept_NV: torch.Tensor | None = None
        for piece in _parts(len(targets_N), tokens):
            logits_NV = layer.logits(hidden_ND[piece], None if temperatures_N is None else temperatures_N[piece])
            logprobs_N[piece] = logits_NV.gather(-1, targets_N[piece, None])[:, 0]
            for rows in _parts(len(logits_NV), _rows_at_once(logits_NV)):
                logs_NV = logits_NV[rows]
                sums_N[piece][rows] = logs_NV.logsumexp(-1)
                if entropy:
                    logs_NV = logs_NV - sums_N[piece][rows, None]
                    entropies_N[piece][rows] = -(logs_NV.exp() * logs_NV).sum(-1)
            kept_NV = logits_NV if len(logits_NV) == len(targets_N) else None
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, temperatures_N, sums_N, entropies_N, kept_NV)
        ctx.entropy, ctx.tokens, ctx.float32 = entropy, tokens, float32
        return logprobs_N - sums_N, entropies_N

    @staticmethod
    def backward(ctx: Any, d_logprobs_N: torch.Tensor, d_entropies_N: torch.Tensor) -> tuple[Any, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, temperatures_N, sums_N, entropies_N, kept_NV = ctx.saved_tensors
        layer = _Layer(weight_VD=weight_VD, bias_V=bias_V, float32=ctx.float32)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden_ND = torch.empty_like(hidden_ND) if needs_hidden else None
        d_weight_VD: torch.Tensor | None = None
        d_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        for piece in _parts(len(targets_N), ctx.tokens):
            piece_temperatures_N = None if temperatures_N is None else temperatures_N[piece]
            d_logits_NV = layer.logits(hidden_ND[piece], piece_temperatures_N) if kept_NV is None else kept_NV
            for rows in _parts(len(d_logits_NV), _rows_at_once(d_logits_NV)):
                logs_NV = d_logits_NV[rows].sub_(sums_N[piece][rows, None])
                d_N1 = d_logprobs_N[piece][rows, None]
                if ctx.entropy:
                    p_NV, entropies_N1 = logs_NV.exp(), entropies_N[piece][rows, None]
                    logs_NV.add_(entropies_N1).mul_(d_entropies_N[piece][rows, None]).add_(d_N1).mul_(p_NV).neg_()
                else:
                    logs_NV.exp_().mul_(-d_N1)
                logs_NV.scatter_add_(1, targets_N[piece][rows, None], d_N1)
                if piece_temperatures_N is not None:
                    logs_NV.div_(piece_temperatures_N[rows, None])
            if d_hidden_ND is not None:
                d_hidden_ND[piece] = layer.hidden_gradient(d_logits_NV)
            if needs_weight:
                d_weight_VD = layer.add_weight_gradient(d_weight_VD, d_logits_NV, hidden_ND[piece])
            if d_bias_V is not None:
                d_bias_V += d_logits_NV.sum(0)
        if needs_weight and d_weight_VD is None:  # no token is scored
            d_weight_VD = torch.zeros_like(weight_VD)
        return (
            d_hidden_ND,
            None if d_weight_VD is None else d_weight_VD.to(weight_VD.dtype),
            None if d_bias_V is None else d_bias_V.to(bias_V.dtype),
            *(None,) * 5,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The output layer's products. With `float32` a CPU multiplies half-precision values in float32."""

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None
    float32: bool

    def logits(self, hidden_ND: torch.Tensor, temperatures_N: torch.Tensor | None) -> torch.Tensor:
        """Return the logits of rows in float32, divided by their temperatures."""
        if self.float32:
            logits_NV = float32_logits(hidden_ND, self.weight_VD, self.bias_V)
        else:
            logits_NV = functional.linear(hidden_ND, self.weight_VD, self.bias_V).float()
        return logits_NV if temperatures_N is None else logits_NV.div_(temperatures_N[:, None])

    def hidden_gradient(self, d_logits_NV: torch.Tensor) -> torch.Tensor:
        weight_VD = self.weight_VD
        if not self._converts:
            return d_logits_NV.to(weight_VD.dtype) @ weight_VD
        d_hidden_ND = d_logits_NV.new_zeros(len(d_logits_NV), weight_VD.shape[1])
        for part in _parts(len(weight_VD), PART_ROWS):
            d_hidden_ND.addmm_(d_logits_NV[:, part], weight_VD[part].float())
        return d_hidden_ND

    def add_weight_gradient(
        self, total_VD: torch.Tensor | None, d_logits_NV: torch.Tensor, hidden_ND: torch.Tensor
    ) -> torch.Tensor:
        """Add the gradient of a piece to the sum of the earlier ones, which is in float32 if there are several."""
        dtype = torch.float32 if self._converts else self.weight_VD.dtype
        transposed_VN, hidden_ND = d_logits_NV.to(dtype).T, hidden_ND.to(dtype)
        if total_VD is None:
            return transposed_VN @ hidden_ND
        if total_VD.dtype == dtype == torch.float32:
            return total_VD.addmm_(transposed_VN, hidden_ND)
        return total_VD.float().add_(transposed_VN @ hidden_ND)

    @property
    def _converts(self) -> bool:
        return self.float32 and not self.weight_VD.is_cuda and self.weight_VD.dtype != torch.float32


def _rows_at_once(logits_NV: torch.Tensor) -> int:
    """Return the number of rows that are touched together: all on a GPU."""
    return len(logits_NV) if logits_NV.is_cuda else max(1, ENTRIES_AT_ONCE // logits_NV.shape[1])
