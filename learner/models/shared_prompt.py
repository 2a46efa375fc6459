"""Prompts that run once: their answers continue from a cache that keeps the graph, forward and backward.

Suffixes: `_PS` prompt and token (padded on the left), `_BT` answer and token, `_BTV` vocabulary entry too. Position 0 of an
answer is the last token of its prompt, so that no log-probability needs the prompt's logits.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from temper.learner.batches.micro_batches import Prompts
from temper.learner.models.borders import border_mask
from temper.learner.models.packed_rows import LEAK_IN_HALF, PROBE
from temper.learner.models.shape import RECURRENT

AS_IT_IS = nullcontext()
REFUSED = "learner.recompute=full with learner.shared_prompts=true does not work for a model"
REMEDY = "set learner.shared_prompts=false"
NO_ARGUMENTS: Mapping[str, torch.Tensor] = MappingProxyType({})


def causal_logits(
    model: Callable[..., Any],
    config: PreTrainedConfig,
    ids_BT: torch.Tensor,
    prompts: Prompts | None,
    *,
    packs: bool = False,
    whole_graph: bool = False,
    reading: AbstractContextManager[None] = AS_IT_IS,
    arguments: Mapping[str, torch.Tensor] = NO_ARGUMENTS,
) -> torch.Tensor:
    """Return logits of shape (B, T, V): of whole sequences, or of answers that continue from `prompts`.

    Padding on the right needs no mask, because a causal model does not see it. If `packs`, the model keeps sequences apart by
    their borders (`Scorer.packs`), so its answers need no mask either. `reading` is the context of the pass that
    returns the logits. `arguments` of the model are for whole sequences only.

    An answer's logits equal those in one sequence with its prompt. Padding before a shorter prompt is masked: attention does
    not see it, and positions do not count it. Mamba layers get zeros for it, so convolution and state are those of an empty
    sequence. `whole_graph` adds the prompts' last logits with weight 0, so that a gradient reaches every module that ran, as
    ZeRO-3 requires.
    """
    if prompts is None:
        with reading:
            logits_BTV: torch.Tensor = model(input_ids=ids_BT, use_cache=False, **arguments).logits
        return logits_BTV
    device = ids_BT.device
    cache = PromptCache(config, _key_places(prompts, length=ids_BT.shape[1], device=device) if packs else None)
    before, after = _padding(prompts, length=ids_BT.shape[1], device=device)
    if packs:
        before, after = _borders(config, prompts, before, length=ids_BT.shape[1], device=device)
    output = model(
        input_ids=torch.tensor(prompts.ids_PS, device=device),
        past_key_values=cache,
        use_cache=False,
        logits_to_keep=torch.zeros(0, dtype=torch.long, device=device),  # none are read
        **before,
    )
    cache.expand(torch.tensor(prompts.of_B, device=device))
    with reading:
        logits_BTV = model(input_ids=ids_BT, past_key_values=cache, use_cache=False, **after).logits
    return logits_BTV + 0.0 * output.logits.sum() if whole_graph else logits_BTV


def _padding(
    prompts: Prompts, *, length: int, device: torch.device
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return masks and positions for the prompts and for the answers; none if all prompts have one length."""
    longest = prompts.ids_PS.shape[1]
    if int(prompts.lengths_P.min()) == longest:
        return {}, {}
    places_PS = np.arange(longest) - (longest - prompts.lengths_P[:, None])
    mask_PS = (places_PS >= 0).astype(np.int64)
    seen_BT = np.ones((len(prompts.of_B), length), dtype=np.int64)
    arrays = (
        {"attention_mask": mask_PS, "position_ids": places_PS.clip(min=0)},
        {
            "attention_mask": np.concatenate([mask_PS[prompts.of_B], seen_BT], axis=1),
            "position_ids": prompts.lengths_P[prompts.of_B][:, None] + np.arange(length),
        },
    )
    before, after = ({name: torch.tensor(array, device=device) for name, array in one.items()} for one in arrays)
    return before, after


def _borders(
    config: PreTrainedConfig, prompts: Prompts, padding: dict[str, torch.Tensor], *, length: int, device: torch.device
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the prompts' pass and of the answers' with borders in place of masks.

    `padding` are the masks and positions of prompts of different lengths. The padding of a prompt is another sequence,
    and Mamba layers still mask it.
    """
    before: dict[str, Any] = dict(padding)
    if padding:
        longest = prompts.ids_PS.shape[1]
        mask = border_mask([part for own in prompts.lengths_P.tolist() for part in (longest - own, own) if part])
        recurrent = RECURRENT.get(config.get_text_config(decoder=True).model_type)
        both = {"full_attention": mask, recurrent: padding["attention_mask"]}
        before["attention_mask"] = mask if recurrent is None else both
    lengths_B = prompts.lengths_P[prompts.of_B]
    after = {
        "attention_mask": border_mask([length] * len(lengths_B), (lengths_B + length).tolist()),
        "position_ids": torch.tensor(lengths_B[:, None] + np.arange(length), device=device),
    }
    return before, after


def _key_places(prompts: Prompts, *, length: int, device: torch.device) -> torch.Tensor:
    """Return for each answer the places of its keys, its prompt's first, among all of the prompts and then all of the answers.

    Padding before a prompt is left out.
    """
    rows, longest = prompts.ids_PS.shape
    ends_B = (prompts.of_B + 1) * longest
    places = [
        part
        for row, (end, own) in enumerate(zip(ends_B, prompts.lengths_P[prompts.of_B], strict=True))
        for part in (np.arange(end - own, end), rows * longest + row * length + np.arange(length))
    ]
    return torch.tensor(np.concatenate(places), device=device)


def require_recomputable(forward: Callable[..., Any], model: PreTrainedModel, *, packs: bool = False) -> None:
    """Raise `ValueError` if recomputed layers do not see shared prompts. Collective under ZeRO-3.

    Short passes compare an answer behind a shared prompt with the same answer in one sequence and without its prompt.
    """
    before, after = PROBE
    ids_1T = torch.arange(1, before + after + 1, device=model.device)[None]
    prompts = Prompts.pad([ids_1T[0, :before].tolist()], rows_P=[1], pad_id=0)
    with torch.no_grad():
        shared_1TV = causal_logits(forward, model.config, ids_1T[:, before:], prompts, packs=packs).float()
        whole_1TV, alone_1TV = (
            forward(input_ids=ids, use_cache=False).logits.float() for ids in (ids_1T, ids_1T[:, before:])
        )
    whole_1TV = whole_1TV[:, before:]
    difference, effect = (shared_1TV - whole_1TV).norm(), (alone_1TV - whole_1TV).norm()
    if not difference <= LEAK_IN_HALF * effect:  # not a number is refused too
        raise ValueError(f"{REFUSED} of type {model.config.model_type}; {REMEDY}")


def recompute_layers(model: PreTrainedModel) -> None:
    """Let the backward pass recompute whole layers, behind shared prompts too.

    transformers disables the cache of a recomputed layer, because its second run would extend the cache again. Here each run
    extends a copy.
    """
    model.gradient_checkpointing_enable()
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            index = next((vars(part)["layer_idx"] for part in layer.modules() if "layer_idx" in vars(part)), None)
            layer._can_checkpoint_with_cache = True
            layer._gradient_checkpointing_func = partial(_run_recomputed, index)


def _run_recomputed(index: int | None, layer: partial[Any], *inputs: Any) -> Any:
    """Run a layer, and again in the backward pass. Both runs extend a copy of its entry in the cache.

    They also repeat the entries of prompts for their answers, so the graph keeps each entry once.
    """
    named = {name: value for name, value in layer.keywords.items() if isinstance(value, PromptCache)}
    if not named and not any(isinstance(value, PromptCache) for value in inputs):
        return checkpoint(layer, *inputs, use_reentrant=False)
    if index is None or len(named) != 1:
        raise ValueError(f"{REFUSED}, as its layers take no named cache; {REMEDY}")
    (name, cache), *_ = named.items()
    cache.expanded_by_layer.add(index)
    stored, count, of_B, others = cache.layers[index], len(cache.layers), cache.of_B, copy(cache)
    others.layers = []  # the graph of this layer keeps no other entry
    without_cache = partial(layer.func, **{key: value for key, value in layer.keywords.items() if key != name})

    def run(*values: Any) -> tuple[Any, Any]:
        own, entry = copy(others), _copy_entry(stored)
        own.layers = [entry] * count  # a layer reads the entry at its index only
        if of_B is not None:
            entry.reorder_cache(of_B)
        return without_cache(*values, **{name: own}), entry

    output, cache.layers[index] = checkpoint(run, *inputs, use_reentrant=False)
    return output


def _copy_entry(entry: Any) -> Any:
    """Copy an entry of a cache and its containers, not its tensors."""
    copied = copy(entry)
    for name, value in vars(entry).items():
        if isinstance(value, list | dict):
            setattr(copied, name, copy(value))
    return copied


class StateLayer(LinearAttentionLayer):
    """The states of a Mamba layer, by assignment: transformers copies in place, which autograd does not allow."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> torch.Tensor:
        """Store and return inputs of the convolution after the previous ones: the end of the prompt, or zeros."""
        kernel = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        if self.has_previous_state[state_idx]:
            inputs = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        else:
            inputs = functional.pad(conv_states, (max(0, kernel - conv_states.shape[-1]), 0))
        self.device, self.dtype = conv_states.device, conv_states.dtype
        self.conv_states[state_idx] = inputs[..., -kernel:]
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        return inputs

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0) -> torch.Tensor:
        """Store and return the state after the last token."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states


def _graph_layer(layer: Any, places_N: torch.Tensor | None) -> Any:
    if type(layer) is LinearAttentionLayer:
        return StateLayer(layer.number_of_states)
    return KeyLayer(places_N) if type(layer) is DynamicLayer and places_N is not None else layer


class KeyLayer(DynamicLayer):
    """The keys and values of prompts, (P, heads, S, width). Answers get them and their own end to end, (1, heads, N, width).

    Each answer has a copy of its prompt's keys, as in a whole sequence. It is not repeated over heads.
    """

    def __init__(self, places_N: torch.Tensor) -> None:
        super().__init__()
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.places_N = places_N
        """See `_key_places`."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store and return the prompts' keys and values, or return the answers' without storing them."""
        if self.keys is None or self.values is None:
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        key, value = (
            torch.cat([one.transpose(1, 2).flatten(0, 1) for one in both])
            .index_select(0, self.places_N)
            .transpose(0, 1)[None]
            for both in ((self.keys, key_states), (self.values, value_states))
        )
        return key, value

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Do nothing: `places_N` has the prompt of each answer."""


class PromptCache(DynamicCache):
    """A cache that keeps the autograd graph: first of prompts, then of their answers."""

    def __init__(self, config: PreTrainedConfig, places_N: torch.Tensor | None = None) -> None:
        """Without `places_N` (`_key_places`) attention gets padded keys, which need a mask."""
        super().__init__(config=config)
        made: list[Any] = self.layers
        self.layers: list[Any] = [_graph_layer(layer, places_N) for layer in made]
        self.expanded_by_layer: set[int] = set()
        """Layers that repeat their entry themselves, because they are recomputed."""
        self.of_B: torch.Tensor | None = None

    def expand(self, of_B: torch.Tensor) -> None:
        """Repeat each prompt's entries for its answers."""
        self.of_B = of_B
        for index, entry in enumerate(self.layers):
            if index not in self.expanded_by_layer:
                entry.reorder_cache(of_B)
