"""Attention by borders against an explicit mask, and passes that read nothing from a device."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.explicit_attention import BEHIND_PROMPTS, explicit_attention
from support.tiny_models import DENSE
from transformers import Qwen3Config, Qwen3ForCausalLM

from temper.learner.batches.micro_batches import Prompts
from temper.learner.models import packed_rows
from temper.learner.models.borders import _attend_by_kernel, attend, border_mask
from temper.learner.models.shared_prompt import causal_logits

WIDTH = 8


@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (4, 1)])
@pytest.mark.parametrize("lengths", [BEHIND_PROMPTS, ([5, 1, 8], [5, 1, 8])], ids=["behind prompts", "packed"])
def test_each_query_sees_the_keys_up_to_its_own_place(heads: tuple[int, int], lengths: Any) -> None:
    torch.manual_seed(0)
    queries, keys = lengths
    shapes = ((sum(queries), heads[0], WIDTH), (sum(keys), heads[1], WIDTH), (sum(keys), heads[1], WIDTH))
    sides = query, key, value = tuple(torch.randn(one, dtype=torch.float64, requires_grad=True) for one in shapes)
    module: Any = SimpleNamespace(num_key_value_groups=heads[0] // heads[1])
    rows = [one.transpose(0, 1)[None] for one in sides]
    found = attend(module, rows[0], rows[1], rows[2], border_mask(queries, keys))[0][0]
    expected = explicit_attention(query, key, value, queries, keys)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad((weights * one).sum(), sides) for one in (found, expected))
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(ours, theirs, strict=True))


def test_torchs_kernel_takes_borders_and_unrepeated_keys() -> None:
    """Without a device only shapes and arguments are checked."""
    queries, keys = BEHIND_PROMPTS
    query, key = (
        torch.empty(sum(one), heads, WIDTH, device="meta", dtype=torch.bfloat16)
        for one, heads in ((queries, 4), (keys, 2))
    )
    output = _attend_by_kernel(query, key, key, border_mask(queries, keys)[0, 0], (queries, keys), 0.5)
    assert (output.shape, output.dtype) == (query.shape, query.dtype)


def test_no_layer_reads_a_device() -> None:
    """A tensor on the device `meta` has no values, so a read would raise."""
    config = Qwen3Config(vocab_size=64, **DENSE)
    real = Qwen3ForCausalLM(config)
    assert not packed_rows.install(real, real)
    model = real.to("meta")
    prompts = Prompts.pad([[1, 2, 3], [4]], rows_P=[2, 1], pad_id=0)
    ids_BT = torch.zeros(3, 5, dtype=torch.long, device="meta")
    assert causal_logits(model, config, ids_BT, prompts, packs=True).shape == (3, 5, 64)
    packed = {"attention_mask": border_mask([2, 3]), "seq_idx": torch.zeros(1, 5, device="meta")}
    assert causal_logits(model, config, ids_BT[:1], None, arguments=packed).shape == (1, 5, 64)
