"""A fresh Qwen 3, for measurements."""

from pathlib import Path

import transformers

from temper.learner.models.fresh import byte_tokenizer


def fresh_qwen3(directory: Path, *, width: int, layers: int, vocabulary: int = 0) -> int:
    """Write a fresh Qwen 3 with its tokenizer to `directory`, for measurements. Return the number of parameters.

    Its layers are attention and MLPs alone. `width` is a multiple of 64. `vocabulary` may exceed the tokenizer's.
    """
    tokenizer = byte_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=max(vocabulary, -(-len(tokenizer) // 32) * 32),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3ForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
