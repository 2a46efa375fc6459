"""Sequence packing: the rows of a micro-batch end to end in one pass, without padding.

Suffixes: `_B` row, `_BT` row and token, `_N` token of the pass, `_1N` the pass as one row.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from temper.learner.batches.packing import packed_cost
from temper.learner.models import mamba_scan
from temper.learner.models.borders import KERNEL_ARGUMENTS, attend, border_mask, lengths_in
from temper.learner.models.sequence_parallel import SequenceGroup, install_mixers
from temper.learner.models.shape import LAYER_TYPES, RECURRENT

PROBE = (5, 4)
"""Tokens of the two sequences that show whether a model keeps rows apart."""
LEAK, LEAK_IN_HALF = 1e-3, 0.1
"""Largest difference by rounding, as a share of the effect of the tokens before a border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """The tokens of each row up to its last scored one. A causal model does not see the rest."""

    kept_BT: torch.Tensor
    borders: tuple[int, ...]
    padding: int = 0
    """Tokens behind the rows, kept apart from them, so that ranks get equal shards."""

    @classmethod
    def find(cls, wanted_BT: torch.Tensor, *, ranks: int = 1) -> "PackedRows | None":
        """Return the rows without padding and without the tokens after the last wanted one, or None if that saves little.

        With several ranks, always return rows.
        """
        places_T = torch.arange(1, wanted_BT.shape[1] + 1, device=wanted_BT.device)
        lengths_B = (wanted_BT * places_T).amax(1).clamp(min=1)
        lengths = lengths_B.tolist()
        if ranks == 1 and packed_cost(tokens=sum(lengths), rows=len(lengths)) >= wanted_BT.numel():
            return None
        padding = -sum(lengths) % ranks
        borders = (0, *accumulate([*lengths, padding] if padding else lengths))
        return cls(kept_BT=places_T <= lengths_B[:, None], borders=borders, padding=padding)

    def pack(self, values_BT: torch.Tensor, *, fill: int = 0) -> torch.Tensor:
        return functional.pad(values_BT[self.kept_BT][None], (0, self.padding), value=fill)

    def unpack(self, values_1N: torch.Tensor) -> torch.Tensor:
        """Return the values by row, 0 for the tokens left out."""
        padded = values_1N.new_zeros(*self.kept_BT.shape, *values_1N.shape[2:])
        return padded.index_put((self.kept_BT,), values_1N[0, : len(values_1N[0]) - self.padding])

    def pack_wanted(self, wanted_BT: torch.Tensor) -> torch.Tensor:
        """Return the wanted tokens of the pass. Nothing predicts the first of a row."""
        wanted_1N = self.pack(wanted_BT)
        wanted_1N[0, list(self.borders[:-1])] = False
        return wanted_1N

    @property
    def arguments(self) -> dict[str, torch.Tensor]:
        """Arguments of a model that keep the rows apart: in positions, in attention, and in states."""
        device = self.kept_BT.device
        rows_BT = torch.arange(len(self.kept_BT), device=device, dtype=torch.int32)[:, None].expand_as(self.kept_BT)
        places_BT = torch.arange(self.kept_BT.shape[1], device=device).expand_as(self.kept_BT)
        return {
            "position_ids": self.pack(places_BT),
            "attention_mask": border_mask([end - start for start, end in pairwise(self.borders)]),
            "seq_idx": self.pack(rows_BT, fill=len(self.kept_BT)),
        }


def packed_lengths(arguments: Mapping[str, Any]) -> list[int] | None:
    """Return the lengths of the packed rows in a pass with these arguments, or None for padded rows."""
    lengths = lengths_in(arguments.get("attention_mask")) if "seq_idx" in arguments else None
    return None if lengths is None else lengths[0]


def install(forward: Callable[..., Any], model: PreTrainedModel, group: SequenceGroup | None = None) -> str:
    """Prepare a model for packed rows, and for a `group` of ranks. Returns the reason if rows can't be packed, else "".

    Collective under ZeRO-3.

    Two short passes compute the second sequence alone, as a continuation of the first, and packed behind it. A model qualifies
    if packed equals alone.
    """
    text = model.config.get_text_config(decoder=True)
    if reason := _unsupported(model, text):
        return reason
    ALL_ATTENTION_FUNCTIONS.register("sdpa", attend if group is None else partial(attend, group=group))
    if group is not None:
        install_mixers(model, group)
    before, after = PROBE
    ids_BT = torch.arange(1, before + after + 1, device=model.device).repeat(2, 1)
    ids_BT[1, :after] = ids_BT[0, before:]
    ends_B = torch.tensor([[before], [after]], device=model.device)
    rows = PackedRows(
        kept_BT=torch.arange(before + after, device=model.device) < ends_B, borders=(0, before, before + after)
    )
    with torch.no_grad():
        continued_BTV = forward(input_ids=ids_BT, use_cache=False).logits.float()
        try:
            packed_1NV = forward(input_ids=rows.pack(ids_BT), use_cache=False, **rows.arguments).logits.float()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:  # its attention takes no borders
            return f"attention refuses their borders: {str(error).partition(chr(10))[0]}"
    alone, continued, packed = continued_BTV[1, :after], continued_BTV[0, before:], packed_1NV[0, before:]
    share = LEAK if model.dtype == torch.float32 else LEAK_IN_HALF
    apart = bool((packed - alone).norm() <= share * (continued - alone).norm())
    return "" if apart else f"model type {text.model_type} mixes them"


def _unsupported(model: PreTrainedModel, text: PreTrainedConfig) -> str:
    """Return the part of a model, or of this installation, that excludes packed rows, or ""."""
    taken = inspect.signature(model.forward).parameters.values()
    if not any(one.name == "seq_idx" or one.kind is one.VAR_KEYWORD for one in taken):
        return f"model type {text.model_type} takes no seq_idx"
    lacking = KERNEL_ARGUMENTS - inspect.signature(varlen_attn).parameters.keys()
    if model.device.type == "cuda" and lacking:
        return f"varlen_attn of torch {torch.__version__} lacks {', '.join(sorted(lacking))}"
    layers = set(get_layer_types_and_kwargs(text)[0])
    recurrent = RECURRENT.get(text.model_type)
    if text._attn_implementation != "sdpa" or not layers <= LAYER_TYPES | {recurrent}:
        return f"unsupported layers or attention of model type {text.model_type}"
    if "sliding_attention" in layers or vars(text).get("sliding_window"):  # some models have it in the mask alone
        return "attention with a window"
    if recurrent in layers and not mamba_scan.separates_sequences():
        return "no scan of Mamba-2 layers that keeps sequences apart"
    return ""
