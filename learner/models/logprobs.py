"""Log-probabilities and entropies of tokens, from logits or from hidden states without all logits at once.

Suffixes: `_BT` sequence and token, `_BTV` vocabulary entry too, `_N` scored token, `_ND` hidden size too, `_NV` vocabulary
entry too, `_VD` both.
"""

from typing import Any

import torch
from torch.nn import functional

LogprobsAndEntropies = tuple[torch.Tensor, torch.Tensor]


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
    costs a third of the layer's operations. With `float32` the layer multiplies in float32, on a copy of its weight.
    """
    if float32:
        hidden_ND, weight_VD = hidden_ND.float(), weight_VD.float()
        bias_V = None if bias_V is None else bias_V.float()
    if len(targets_N) <= tokens:
        logits_NV = _logits(hidden_ND, weight_VD, bias_V, temperatures_N, slice(None))
        return _scores(logits_NV, targets_N, entropy=entropy)
    logprobs_N, entropies_N = _InPieces.apply(hidden_ND, weight_VD, bias_V, targets_N, temperatures_N, entropy, tokens)
    return logprobs_N, entropies_N


def _logits(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    temperatures_N: torch.Tensor | None,
    rows: slice,
) -> torch.Tensor:
    """Return the logits of some rows in float32, divided by their temperatures."""
    logits_NV = functional.linear(hidden_ND[rows], weight_VD, bias_V).float()
    return logits_NV if temperatures_N is None else logits_NV / temperatures_N[rows, None]


def _scores(logits_NV: torch.Tensor, targets_N: torch.Tensor, *, entropy: bool) -> LogprobsAndEntropies:
    chosen_N = logits_NV.gather(-1, targets_N[:, None])[:, 0]
    if not entropy:
        logprobs_N = chosen_N - logits_NV.logsumexp(-1)
        return logprobs_N, torch.zeros_like(logprobs_N)
    logs_NV = logits_NV.log_softmax(-1)
    return chosen_N - logits_NV.logsumexp(-1), -(logs_NV.exp() * logs_NV).sum(-1)


class _InPieces(torch.autograd.Function):
    """The same in pieces. With p the softmax of a row's logits z, y its target and H its entropy, d log p_y / dz = onehot(y)
    - p and dH / dz = -p (log p + H), with z the layer's output over the temperature."""

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
    ) -> LogprobsAndEntropies:
        pieces = []
        for start in range(0, len(targets_N), tokens):
            rows = slice(start, start + tokens)
            logits_NV = _logits(hidden_ND, weight_VD, bias_V, temperatures_N, rows)
            pieces.append(_scores(logits_NV, targets_N[rows], entropy=entropy))
        entropies_N = torch.cat([piece[1] for piece in pieces])
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, temperatures_N, entropies_N)
        ctx.entropy, ctx.tokens = entropy, tokens
        return torch.cat([piece[0] for piece in pieces]), entropies_N

    @staticmethod
    def backward(ctx: Any, d_logprobs_N: torch.Tensor, d_entropies_N: torch.Tensor) -> tuple[Any, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, temperatures_N, entropies_N = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden_ND = torch.empty_like(hidden_ND) if needs_hidden else None
        d_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needs_weight else None
        d_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        for start in range(0, len(targets_N), ctx.tokens):
            rows = slice(start, start + ctx.tokens)
            logs_NV = _logits(hidden_ND, weight_VD, bias_V, temperatures_N, rows).log_softmax(-1)
            p_NV = logs_NV.exp()
            d_logits_NV = -d_logprobs_N[rows, None] * p_NV
            d_logits_NV.scatter_add_(1, targets_N[rows, None], d_logprobs_N[rows, None])
            if ctx.entropy:
                d_logits_NV -= d_entropies_N[rows, None] * p_NV * (logs_NV + entropies_N[rows, None])
            if temperatures_N is not None:
                d_logits_NV /= temperatures_N[rows, None]
            d_out_NV = d_logits_NV.to(hidden_ND.dtype)
            if d_hidden_ND is not None:
                d_hidden_ND[rows] = d_out_NV @ weight_VD
            if d_weight_VD is not None:
                d_weight_VD += d_out_NV.T @ hidden_ND[rows]
            if d_bias_V is not None:
                d_bias_V += d_logits_NV.sum(0)
        return (
            d_hidden_ND,
            None if d_weight_VD is None else d_weight_VD.to(weight_VD.dtype),
            None if d_bias_V is None else d_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
            None,
        )
