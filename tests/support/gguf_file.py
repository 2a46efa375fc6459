"""A GGUF file of a tiny Llama: version 3 of the format, weights as float32 or in blocks of 8 bits (Q8_0)."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}
F32, Q8_0, BLOCK, ALIGNMENT = 0, 8, 32, 32


def write_gguf(
    path: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, quantized: bool, without: str = "none"
) -> None:
    """Write a model, without the weights whose names begin with `without`."""
    config = model.config
    facts = {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": _tokens(tokenizer, config.vocab_size),
        "tokenizer.ggml.token_type": _token_types(tokenizer, config.vocab_size),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.padding_token_id": tokenizer.pad_token_id,
        "tokenizer.chat_template": tokenizer.chat_template,
    }
    table, data = b"", b""
    weights = {name: weight for name, weight in model.state_dict().items() if not name.startswith(without)}
    for name, weight in weights.items():
        kind, body = _body(_permuted(name, weight, config).contiguous().float().numpy(), quantized=quantized)
        dimensions = list(weight.shape)[::-1]
        table += _text(_renamed(name)) + struct.pack(
            f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, len(data)
        )
        data += body + bytes(-len(body) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(facts))
    head += b"".join(_text(key) + _value(value) for key, value in facts.items()) + table
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


def _tokens(tokenizer: PreTrainedTokenizerFast, size: int) -> list[str]:
    names = {index: token for token, index in tokenizer.get_vocab().items()}
    return [names.get(index, f"<unused{index}>") for index in range(size)]


def _token_types(tokenizer: PreTrainedTokenizerFast, size: int) -> list[int]:
    """Return 3 for control tokens, 4 for other added ones, 1 for all others."""
    added = {index: 3 if token.special else 4 for index, token in tokenizer.added_tokens_decoder.items()}
    return [added.get(index, 1) for index in range(size)]


def _permuted(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    """Reorder the rows of queries and keys for llama.cpp's rotary embedding."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            rows, columns = weight.shape
            return weight.reshape(count, 2, rows // count // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return weight


def _body(weight: "np.ndarray[Any, Any]", *, quantized: bool) -> tuple[int, bytes]:
    if not quantized or weight.ndim == 1:
        return F32, weight.astype("<f4").tobytes()
    blocks = weight.reshape(-1, BLOCK)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
    whole = np.round(blocks / np.where(scales == 0, 1, scales).astype("f4")).astype("i1")
    return Q8_0, b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, whole, strict=True))


def _renamed(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    kinds: dict[type, tuple[int, Any]] = {
        str: (8, _text),
        int: (4, lambda number: struct.pack("<I", number)),
        float: (6, lambda number: struct.pack("<f", number)),
    }
    if isinstance(value, list):
        kind, write = kinds[int if value and isinstance(value[0], int) else str]
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(write, value))
    kind, write = kinds[type(value)]
    return struct.pack("<I", kind) + bytes(write(value))
