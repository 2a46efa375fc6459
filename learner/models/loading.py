"""Model directories in Hugging Face format: the trained model and the tokenizer's files."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from temper.envs.core.process import set_variables
from temper.learner.config import Recomputed
from temper.learner.models import mamba_scan
from temper.learner.models.expert_parallel import own_experts
from temper.learner.models.kernels import Device, require_kernels, training_device
from temper.learner.models.shared_prompt import recompute_layers
from temper.rollout.weights.own_files import own_files

PROBABILITY, ROUTER_NOISE = "drop", "jitter"
"""Parts of transformers' names for dropout probabilities and for the width of router noise."""


def train_without_noise(model: PreTrainedModel) -> None:
    """Switch to training mode without randomness, so that the model computes the same function as an engine.

    Dropout probabilities become 0, in modules and in their configuration. A checkpoint keeps the original ones. A router
    with noise is in evaluation mode, because PhiMoE's reads the noise width there too. All other modules are in training
    mode, for fused kernels and recomputation in the backward pass.
    """
    read, model.config = model.config, copy.deepcopy(model.config)  # `save_pretrained` writes the copy
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
"""Setting of models, such as Gemma 2, that cap attention scores, which only eager attention supports."""


Place = Callable[[torch.nn.Module, torch.nn.Parameter], None]
"""Receives a module and its parameter with its values, and may replace them."""
ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"
"""Setting of transformers to read a parameter only when the previous one has its place."""


def read_model(directory: Path, *, device: Device | None = None, place: Place | None = None) -> PreTrainedModel:
    """Read a model in float32 that computes the same function as the engines.

    With `place` each parameter is read alone, in float32, and passed to it. Without other references to its values, main
    memory never holds more than one parameter. The order is the same in each process.

    Raises `ValueError` if the directory holds none, or if a GPU lacks its kernels (`device` None: this machine's training
    device), and with `place` if the files lack a parameter.
    """
    if not (directory / "config.json").is_file() or not own_files(directory, "*.safetensors"):
        raise ValueError(f"{directory} is not a model directory: it needs config.json and *.safetensors")
    text = AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config(decoder=True)
    with _read_one_by_one(place) as placed:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager" if vars(text).get(CAP) else None,
        )
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in placed]
    if place is not None and missing:
        raise ValueError(f"{directory} lacks {len(missing)} weights, such as {missing[0]}; download it again")
    require_kernels(model, device=device or training_device())
    mamba_scan.match_engine(model)
    return model


@contextmanager
def _read_one_by_one(place: Place | None) -> Iterator[dict[int, torch.nn.Parameter]]:
    """Pass each parameter that transformers reads to `place`. Yield the passed ones by their ids."""
    placed: dict[int, torch.nn.Parameter] = {}
    if place is None:
        yield placed
        return

    def register(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        if "_is_hf_initialized" in vars(parameter) and id(parameter) not in placed:  # tied ones come again
            placed[id(parameter)] = parameter
            place(module, parameter)

    hook = register_module_parameter_registration_hook(register)
    try:
        with set_variables({ONE_BY_ONE: "1"}):
            yield placed
    finally:
        hook.remove()


def reread(
    directory: Path, placed: Sequence[torch.nn.Parameter], use: Callable[[torch.nn.Parameter, torch.Tensor], None]
) -> None:
    """Read the float32 values of parameters again, which `read_model` has passed to `place` in this order."""
    order = iter(placed)

    def place(_module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
        use(next(order), parameter.data)
        parameter.data = torch.empty(0)

    read_model(directory, place=place)


def full_shape(parameter: torch.nn.Parameter) -> torch.Size:
    """Return a parameter's shape, even if ZeRO has partitioned it, or ranks share its experts."""
    if own := own_experts(parameter):
        return own.shape
    shape: torch.Size = vars(parameter).get("ds_shape", parameter.shape)
    return shape


def cast(model: PreTrainedModel, *, bf16: bool) -> None:
    """Convert a model's parameters to the computing type. Buffers keep theirs: RoPE multiplies its frequencies by positions
    of thousands, and a router's bias decides by its last digits."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16 if bf16 else torch.float32)


def read_structure(directory: Path) -> PreTrainedModel:
    """Build a model on the meta device, without its weights."""
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return model


def map_file_names(directory: Path) -> dict[str, str]:
    """Map the parameter names in a model's file to those in the model, if one corresponds to one. Reads no weights."""
    model = read_structure(directory)
    found: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        in_file = list(revert_weight_conversion(model, {name: parameter.detach()}))
        found |= {in_file[0]: name} if len(in_file) == 1 else {}
    return found


def recompute(model: PreTrainedModel, kind: Recomputed) -> None:
    """Let the backward pass recompute nothing ("none"), the inside of scans ("selective") or whole layers ("full").

    Whole layers: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Selective: Korthikanti et al.,
    "Reducing Activation Recomputation in Large Transformer Models", section 4, 2022. Attention's fused kernels and the
    scan's CUDA kernels keep no activations, so selective affects only the scan on a CPU (`learner/models/mamba_scan.py`),
    for all models of this process.

    Raises `ValueError` if a model does not support "full".
    """
    mamba_scan.install(recompute=kind == "selective")
    if kind == "full":
        if not model.supports_gradient_checkpointing:
            raise ValueError(
                f"learner.recompute=full: a model of type {model.config.model_type} does not support it; set "
                "learner.recompute=selective"
            )
        recompute_layers(model)


def read_tokenizer(directory: Path) -> dict[str, bytes]:
    """Read the tokenizer's files into memory, because the initial checkpoint may be deleted before the next is saved."""
    return {path.name: path.read_bytes() for pattern in TOKENIZER_FILES for path in own_files(directory, pattern)}
