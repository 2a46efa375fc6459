"""Model directories in Hugging Face format: the model that is trained from one, and its tokenizer's files."""

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from temper.learner.config import Recomputed
from temper.learner.models import mamba_scan
from temper.learner.models.kernels import Device, require_kernels, training_device

PROBABILITY, ROUTER_NOISE = "drop", "jitter"
"""Parts of the names that transformers gives to probabilities of dropout, and to the width of a router's noise."""


def train_without_noise(model: PreTrainedModel) -> None:
    """Put a model in training mode without anything random, so that it computes the same function as an engine.

    Probabilities become 0, in the modules and in the configuration that they read. A checkpoint keeps the model's own. A
    router with noise is in evaluation mode instead, because PhiMoE's reads the width of its noise there too. The rest is in
    training mode, in which layers take their fused kernels and can be recomputed in the backward pass.
    """
    read, model.config = model.config, copy.deepcopy(model.config)  # of which `save_pretrained` writes the second
    for config in _configs(read):
        _clear(config)
    model.train()
    for module in model.modules():
        _clear(module)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if any(ROUTER_NOISE in name for name in vars(module)):
            module.training = False


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            yield from _configs(part)


def _clear(owner: object) -> None:
    for name, value in vars(owner).items():
        if PROBABILITY in name and isinstance(value, float):
            setattr(owner, name, 0.0)


TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)

CAP = "attn_logit_softcapping"
"""Setting of models, such as Gemma 2, that cap the scores of attention, which only its eager form computes."""


def read_model(directory: Path, *, device: Device | None = None) -> PreTrainedModel:
    """Read a model in float32 that computes what the engines compute.

    Raises `ValueError` where the directory holds none, and for one whose kernels a GPU lacks (`device` None: where this
    machine trains).
    """
    if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
        raise ValueError(f"{directory} is not a model directory: it needs config.json and *.safetensors")
    text = AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config(decoder=True)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        trust_remote_code=False,
        use_safetensors=True,
        attn_implementation="eager" if vars(text).get(CAP) else None,
    )
    require_kernels(model, device=device or training_device())
    mamba_scan.match_engine(model)
    return model


def cast(model: PreTrainedModel, *, bf16: bool) -> None:
    """Give a model's parameters the type that passes compute in. Its buffers keep theirs: RoPE's frequencies are multiplied
    by positions of thousands, and a router's bias decides by its last digits.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16 if bf16 else torch.float32)


def file_names(directory: Path) -> dict[str, str]:
    """Return by the name of each parameter in a model's file that in the model, where one stands for one. Reads no weights."""
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    found: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        in_file = list(revert_weight_conversion(model, {name: parameter.detach()}))
        found |= {in_file[0]: name} if len(in_file) == 1 else {}
    return found


def recompute(model: PreTrainedModel, kind: Recomputed) -> None:
    """Let the backward pass compute nothing again ("none"), the insides of scans ("selective") or whole layers ("full").

    Whole layers: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Only insides that are large and
    cheap: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", section 4, 2022. Of those,
    attention's fused kernels keep none, on a CPU or a GPU, and neither do the scan's CUDA kernels; what is left is the
    scan on a CPU (`learner/models/mamba_scan.py`), of all models of this process.

    Raises `ValueError` for a model that can't compute its layers again.
    """
    mamba_scan.install(recompute=kind == "selective")
    if kind == "full":
        if not model.supports_gradient_checkpointing:
            raise ValueError(
                f"learner.recompute=full: a model of type {model.config.model_type} can't; set "
                "learner.recompute=selective"
            )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def read_tokenizer(directory: Path) -> dict[str, bytes]:
    """Read the tokenizer's files, to be kept: the checkpoint that a run continues from may be gone when it saves the next."""
    return {path.name: path.read_bytes() for pattern in TOKENIZER_FILES for path in directory.glob(pattern)}
