"""Training passes without dropout and without the noise of routers, on families that draw in different places."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PhimoeConfig,
    PreTrainedConfig,
)

from temper.learner.models.loading import train_without_noise

SHAPE = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "num_key_value_heads": 1}
NOISY: dict[str, Callable[[], PreTrainedConfig]] = {
    "modules": lambda: GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=2),  # 0.1 by default
    "attributes": lambda: LlamaConfig(**SHAPE, intermediate_size=32, attention_dropout=0.5),
    "whole layers": lambda: OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=32, dropout=0.3, layerdrop=0.5),
    "read from the configuration": lambda: FalconConfig(**SHAPE, hidden_dropout=0.5, attention_dropout=0.5),
    "a block of experts": lambda: MixtralConfig(**SHAPE, **EXPERTS, router_jitter_noise=0.5),
    "a router": lambda: PhimoeConfig(**SHAPE, **EXPERTS, router_jitter_noise=0.3, input_jitter_noise=0.5),
}


@pytest.mark.parametrize("where", NOISY)
def test_a_training_pass_without_noise_is_that_of_evaluation(where: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(NOISY[where]())
    ids_BT = torch.randint(0, 60, (3, 20))
    with torch.no_grad():
        exact = model.eval()(input_ids=ids_BT).logits
        noisy = model.train()(input_ids=ids_BT).logits
        for _ in range(2):  # each step asks for it
            train_without_noise(model)
        plain = model(input_ids=ids_BT).logits
    assert not torch.allclose(noisy, exact, atol=1e-3)
    assert torch.equal(plain, exact)
    assert model.training
    model.save_pretrained(tmp_path)
    saved, own = AutoConfig.from_pretrained(tmp_path).to_dict(), NOISY[where]().to_dict()
    assert {name: saved[name] for name in own if "drop" in name} == {n: v for n, v in own.items() if "drop" in n}
