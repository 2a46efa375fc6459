"""`init`: a small Nemotron-H hybrid with a byte-level tokenizer and a chat template, in Hugging Face format.

Runs from an existing model do not use this module. Classes of transformers with slow imports are named in full, so that they
are imported at first use.
"""

import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from temper.learner.models.config import KERNEL, LAYER_TYPES, MAMBA_HEAD_DIM, FreshModelConfig

PAD, IM_START, IM_END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TEXT_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "system", "user", "assistant", "tool")
"""Single tokens that stay visible in decoded text: tags, and the role names of the chat template."""
FORMAT_TOKENS = ('{"name":"', '","arguments":{"', '": "', '"}}', "\\boxed{", "def f(", "    return ", ":string)")
"""Fixed strings of the answer formats, one token each, so that a small model spends its length on decisions."""
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte and a few tags. Any UTF-8 text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (PAD, IM_START, IM_END)])
    texts = [AddedToken(token, special=False, single_word=token.isalpha()) for token in TEXT_TOKENS + FORMAT_TOKENS]
    tokenizer.add_tokens(texts)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=IM_END,
        bos_token=IM_START,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return fast


def padded_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the vocabulary size of a fresh model: its tokenizer's, rounded up to a multiple of 8."""
    return -(-len(tokenizer) // 8) * 8


def make_model(directory: Path, config: FreshModelConfig, *, seed: int) -> int:
    """Write a fresh model with its tokenizer to `directory`; returns the number of parameters.

    The same seed gives the same weights. An existing directory is replaced.
    """
    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    model = transformers.NemotronHForCausalLM(hybrid_config(config, tokenizer))
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


def hybrid_config(config: FreshModelConfig, tokenizer: PreTrainedTokenizerFast) -> "transformers.NemotronHConfig":
    """Return the configuration of a fresh model for transformers."""
    return transformers.NemotronHConfig(
        vocab_size=padded_size(tokenizer),
        hidden_size=config.hidden_size,
        layers_block_type=[LAYER_TYPES[letter] for letter in config.pattern],
        intermediate_size=config.intermediate_size,
        n_routed_experts=config.experts,
        num_experts_per_tok=config.experts_per_token,
        moe_intermediate_size=config.expert_size,
        moe_shared_expert_intermediate_size=config.expert_size,
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.hidden_size // config.attention_heads,
        mamba_num_heads=config.mamba_heads,
        mamba_head_dim=MAMBA_HEAD_DIM,
        conv_kernel=KERNEL,
        n_groups=1,
        ssm_state_size=config.state_size,
        expand=config.mamba_heads * MAMBA_HEAD_DIM // config.hidden_size,
        chunk_size=config.chunk_size,
        max_position_embeddings=config.max_positions,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=config.initializer_range,
        dtype="float32",
    )
