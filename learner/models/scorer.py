"""A causal language model as a function from ids to the log-probability and entropy of each token.

Suffixes: `_B` sequence, `_BT` sequence and token, `_BT2` a pair of scores, `_BTD` hidden size, `_N` one entry per scored
token.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from temper.learner.batches.micro_batches import Prompts
from temper.learner.models import packed_rows
from temper.learner.models.logprobs import token_entropies, token_logprobs, vocabulary_scores
from temper.learner.models.packed_rows import PackedRows
from temper.learner.models.sequence_parallel import SequenceGroup, require_divisible
from temper.learner.models.shared_prompt import NO_ARGUMENTS, causal_logits

PROBE_TOKENS, PROBE_RANGE = 8, 100.0
"""Tokens of the pass that finds the source of a model's logits, and the size of its probe values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of each token given those before it, float32, shape (B, T), 0 if not requested. Entropies are in nats."""

    logprobs_BT: torch.Tensor
    entropies_BT: torch.Tensor


class Scorer:
    """Scores tokens with a model; `forward` is the model itself or its wrapper.

    Within a call the output layer turns hidden states into scores, of the wanted tokens only and with at most `tokens` rows
    of logits at once. The logits of a whole pass never exist. This happens in the layer's forward call, because ZeRO-3
    gathers its weight only there. Outside a call the layer is unchanged. A model that modifies its logits after a linear
    output layer computes all of them.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        model: PreTrainedModel,
        *,
        tokens: int,
        whole_graph: bool = False,
        float32_head: bool = False,
        group: SequenceGroup | None = None,
    ) -> None:
        """With `float32_head` the output layer multiplies in float32. Raises `ValueError` if it is not linear.

        With a `group` each rank runs its tokens of a pass, and all of these ranks return the scores of all tokens. Raises
        `ValueError` if the model does not support it.
        """
        self._forward = forward
        self._config = model.config
        self._tokens = tokens
        self._whole_graph = whole_graph
        self._request: _Request | None = None
        self._float32 = float32_head
        if float32_head:
            multiply_in_float32(model)
        self._layer = output_layer(forward, model)
        self._group = group
        if group is not None:
            require_divisible(model.config, size=group.size)
        self.padded_because = packed_rows.install(forward, model, group)
        """The reason if rows are padded instead of packed end to end, else ""."""
        self.packs = not self.padded_because
        if group is not None and not (self.packs and self._layer is not None):
            raise ValueError(
                f"learner.sequence_parallel={group.size} with a model of type {model.config.model_type}: the "
                "model must keep packed rows apart and take its logits from a linear layer "
                f"({self.padded_because or 'it modifies its logits'}); set learner.sequence_parallel=1"
            )
        if self._layer is not None:
            self._plain = self._layer.forward
            self._layer.forward = self._read  # type: ignore[assignment, method-assign]

    def __call__(
        self,
        ids_BT: torch.Tensor,
        wanted_BT: torch.Tensor,
        prompts: Prompts | None = None,
        *,
        entropy: bool = False,
        temperatures_B: torch.Tensor | None = None,
    ) -> Scores:
        """Score the wanted tokens of sequences, or of answers to `prompts`, which run once; padded on the right.

        The logits of a row are divided by its temperature. Without `temperatures_B` all are 1. Sequences whose padding costs
        much run as one row, if the model keeps them apart.
        """
        temperatures_BT = None if temperatures_B is None else temperatures_B[:, None].expand_as(ids_BT)
        ranks = 1 if self._group is None else self._group.size
        rows = PackedRows.find(wanted_BT, ranks=ranks) if self.packs and prompts is None else None
        if rows is None:
            scores_BT2 = self._score(ids_BT, wanted_BT, temperatures_BT, prompts=prompts, entropy=entropy)
        else:
            scores_1N2 = self._score(
                rows.pack(ids_BT),
                rows.pack_wanted(wanted_BT),
                None if temperatures_BT is None else rows.pack(temperatures_BT),
                entropy=entropy,
                arguments=rows.arguments,
            )
            scores_BT2 = rows.unpack(scores_1N2)
        logprobs_BT, entropies_BT = scores_BT2.unbind(-1)
        return Scores(logprobs_BT=logprobs_BT, entropies_BT=entropies_BT)

    def _score(
        self,
        ids_BT: torch.Tensor,
        wanted_BT: torch.Tensor,
        temperatures_BT: torch.Tensor | None,
        *,
        entropy: bool,
        prompts: Prompts | None = None,
        arguments: Mapping[str, torch.Tensor] = NO_ARGUMENTS,
    ) -> torch.Tensor:
        """Return the log-probability and the entropy of each wanted token, 0 for others; shape (B, T, 2)."""
        group = self._group
        own_ids_BT = ids_BT if group is None else group.take_shard(ids_BT, dim=1)
        if group is not None:
            arguments = {**arguments, "position_ids": group.take_shard(arguments["position_ids"], dim=1)}
        request = _Request(
            next_BT=_shift(ids_BT, group),
            wanted_BT=_shift(wanted_BT, group),
            entropy=entropy,
            temperatures_BT=None if temperatures_BT is None else _shift(temperatures_BT, group),
        )
        output = causal_logits(
            self._forward,
            self._config,
            own_ids_BT,
            prompts,
            packs=self.packs,
            whole_graph=self._whole_graph,
            reading=self._serve(request),
            arguments=arguments,
        )
        if self._layer is not None:
            scores_BT2 = output if group is None else group.gather(output[0])[None]
            return functional.pad(scores_BT2[:, :-1], (0, 0, 1, 0))
        if temperatures_BT is not None:
            output = output / temperatures_BT[..., None]
        logprobs_BT = token_logprobs(output, ids_BT)
        entropies_BT = token_entropies(output) if entropy else torch.zeros_like(logprobs_BT)
        return torch.stack([logprobs_BT, entropies_BT], dim=-1) * wanted_BT[..., None]

    @contextmanager
    def _serve(self, request: "_Request") -> Iterator[None]:
        self._request = request
        try:
            yield
        finally:
            self._request = None

    def _read(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        request = self._request
        if request is None:
            logits_BTV: torch.Tensor = self._plain(hidden_BTD)
            return logits_BTV
        layer = self._layer
        assert layer is not None
        scores_N = vocabulary_scores(
            hidden_BTD[request.wanted_BT],
            layer.weight,
            layer.bias,
            request.next_BT[request.wanted_BT],
            entropy=request.entropy,
            tokens=self._tokens,
            temperatures_N=request.temperatures_N,
            float32=self._float32,
        )
        scores_BT2 = torch.zeros(*hidden_BTD.shape[:2], 2, dtype=torch.float32, device=hidden_BTD.device)
        return scores_BT2.index_put((request.wanted_BT,), torch.stack(scores_N, dim=-1))


def _shift(values_BT: torch.Tensor, group: SequenceGroup | None) -> torch.Tensor:
    """Return the value of the next token of each position, 0 behind the last, for this rank's positions."""
    next_BT = functional.pad(values_BT[:, 1:], (0, 1))
    return next_BT if group is None else group.take_shard(next_BT, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The next token of each position, whether it is scored, and its temperature."""

    next_BT: torch.Tensor
    wanted_BT: torch.Tensor
    entropy: bool
    temperatures_BT: torch.Tensor | None

    @property
    def temperatures_N(self) -> torch.Tensor | None:
        return None if self.temperatures_BT is None else self.temperatures_BT[self.wanted_BT]


def multiply_in_float32(model: PreTrainedModel) -> None:
    """Make a model's output layer multiply in float32, regardless of its weight's type."""
    layer = model.get_output_embeddings()
    if type(layer) is not torch.nn.Linear:
        raise ValueError(
            f"learner.float32_head=true: a model of type {model.config.model_type} has no linear output layer; set false"
        )

    def multiply(hidden_BTD: torch.Tensor) -> torch.Tensor:
        bias_V = None if layer.bias is None else layer.bias.float()
        return functional.linear(hidden_BTD.float(), layer.weight.float(), bias_V)

    layer.forward = multiply  # type: ignore[assignment, method-assign]


def output_layer(forward: Callable[..., Any], model: PreTrainedModel) -> torch.nn.Linear | None:
    """Return the linear layer whose outputs are the logits, or None if they are scaled, capped or cut afterwards.

    A short pass finds out: its output layer returns values that a cap or a scale would change. Collective under ZeRO-3.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not torch.nn.Linear:
        return None
    put: list[torch.Tensor] = []

    def replace_output(_layer: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        numbers = torch.linspace(-PROBE_RANGE, PROBE_RANGE, output.numel(), device=output.device)
        put.append(numbers.view_as(output).to(output.dtype))
        return put[-1]

    handle = layer.register_forward_hook(replace_output)
    try:
        ids_BT = torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=model.device)
        with torch.no_grad():
            logits_BTV = forward(input_ids=ids_BT, use_cache=False).logits
    finally:
        handle.remove()
    is_whole = len(put) == 1 and torch.equal(logits_BTV.float(), put[0].float())
    return layer if is_whole else None
