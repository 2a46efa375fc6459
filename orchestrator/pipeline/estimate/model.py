"""The model of a plan: its real class without memory, so that counts match training and pushes.

transformers builds it on torch's meta device from `config.json`, in tenths of a second at any size. A configuration with custom
code uses transformers' class for its `model_type`. Without one, the model cannot be trained either.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import temper.rollout.deferred_imports  # noqa: F401

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from temper.envs.data.hub import download_snapshot
from temper.learner.config import LearnerConfig
from temper.learner.engine.optimizer import freeze, inner_matrices
from temper.learner.models.adapters import add_adapters, strip_adapters
from temper.learner.models.expert_parallel import STACKS
from temper.learner.models.fresh import byte_tokenizer, hybrid_config
from temper.learner.models.gguf import gguf_config
from temper.learner.models.layer_types import types_of_tensors
from temper.learner.models.shape import ModelShape, read_shape
from temper.learner.training_state import model_bytes, state_bytes
from temper.orchestrator.config.loop import DistillConfig, RlConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.run_config import ModelConfig
from temper.orchestrator.pipeline.estimate.layers import Layer, layers_of
from temper.rollout.weights.config import WireDtype
from temper.rollout.weights.manifest import layout

CONFIG = "config.json"
PART = {"linear attention": "linear attention", "mamba": "Mamba", "attention": "attention", "mlp": "MLP"}
"""Parts of a model by layer type (`learner.models.layer_types`).

Embedding, output layer, routed experts and shared experts (an MLP) are separate parts. Everything else is `norms and routers`.
"""
REST = "norms and routers"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """The counts of a model that may not be downloaded yet."""

    name: str
    """Its path or name, or "a fresh hybrid" for a model of `init`."""
    kind: str
    """Its `model_type`."""
    parameters: int
    """Tied parameters count once. Adapters are excluded."""
    trained: int
    """Parameters of the optimizer, including adapters."""
    active: int
    """Parameters that a token uses: only its routed experts count. The embedding is a lookup."""
    largest_layer: int
    """Parameters of the largest layer, which ZeRO-3 gathers whole. Embedding and output layer count as layers."""
    largest_tensor: int
    """Parameters of the largest tensor, such as the stacked experts of a layer."""
    matrices: int
    """Trained parameters of the matrices that Muon updates."""
    largest_matrix: int
    newton_schulz_entries: int
    """Entries that Muon's Newton-Schulz has at once (`_newton_schulz_entries`)."""
    experts: int
    """Experts of a layer, which ranks may share. 0 without expert layers of a known kind."""
    parts: dict[str, int]
    """Parameters by part (`PART`)."""
    layers: tuple[Layer, ...]
    """From the first to the last."""
    shape: ModelShape
    push_tensors: int
    """Tensors of a push of the whole weights."""
    largest_pushed_tensor: int
    """Parameters of the largest pushed tensor. Experts are pushed one by one."""
    push_bytes: dict[str, int]
    """Bytes of a push of the whole weights, in the wire type."""
    saved_bytes: int
    """Bytes of the model's tensors in a checkpoint."""
    state_bytes: int
    """Maximum bytes of the training state in a checkpoint (`temper.learner.training_state.state_bytes`)."""

    @property
    def experts_per_layer(self) -> int:
        """Parameters of the routed experts of a layer. 0 without experts."""
        layers = sum(layer.active < layer.parameters for layer in self.layers)
        return self.parts.get("routed experts", 0) // max(1, layers)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint without file headers and small files."""
        return self.saved_bytes + self.state_bytes


def planned_model(model: ModelConfig, learner: LearnerConfig, *, ema: bool = False) -> PlannedModel:
    """Count the model of a run as its learner would have it.

    Raise `FileNotFoundError` or `ValueError` if its configuration is missing, or describes no model that can be trained.
    """
    if model.source is None:
        return count_model(hybrid_config(model.fresh, byte_tokenizer()), learner, name="a fresh hybrid", ema=ema)
    return count_model(source_config(model.source), learner, name=model.source.path, ema=ema)


def source_config(source: ModelSource) -> PretrainedConfig:
    """Return a model's configuration from its folder or GGUF file, or download only it. Raise as `planned_model`."""
    if source.on_hub:
        return read_config(
            download_snapshot(source.path, kind="model", revision=source.revision, patterns=(CONFIG,)).folder
        )
    return read_config(source.folder) if source.gguf is None else gguf_config(source.gguf)


def read_config(folder: Path) -> PretrainedConfig:
    """Return the configuration in a folder. Raise `FileNotFoundError` or `ValueError` if there is no known one."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG}, which is all that a plan needs of a model")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:
        raise ValueError(
            f"{folder / CONFIG} needs a class that transformers does not have, and custom model code is not "
            f"run: {str(error).splitlines()[0]}"
        ) from error


def count_model(config: PretrainedConfig, learner: LearnerConfig, *, name: str, ema: bool = False) -> PlannedModel:
    """Count the model that a configuration describes, trained as a learner would. Raise as `planned_model`."""
    model = _skeleton(config)
    text = config.get_text_config(decoder=True)
    layers = layers_of(model, text)
    sizes = {each: parameter.numel() for each, parameter in model.named_parameters()}
    whole = sum(sizes.values())
    ends = [
        end.weight.numel() for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None
    ]
    looked_up = 0 if text.tie_word_embeddings else ends[0]
    if learner.lora.rank:
        add_adapters(model, rank=learner.lora.rank, alpha=learner.lora.alpha)
    elif learner.frozen:
        freeze(model, learner.frozen)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    matrices = [shape for _, shape in inner_matrices(model)]
    pushed = _push_shapes(model)
    buffers = dict(model.named_buffers())  # such as a router's bias: saved in float32
    kept = sum(buffers[name].numel() for name in model.state_dict() if name in buffers)
    return PlannedModel(
        name=name,
        kind=config.model_type,
        parameters=whole,
        trained=trained,
        active=whole - looked_up - sum(layer.parameters - layer.active for layer in layers),
        largest_layer=max([*ends, *(layer.parameters for layer in layers)]),
        largest_tensor=max(sizes.values()),
        matrices=sum(matrix.numel() for matrix in matrices),
        largest_matrix=max((matrix.numel() for matrix in matrices), default=0),
        newton_schulz_entries=max((_newton_schulz_entries(*matrix) for matrix in matrices), default=0),
        experts=max((len(one.down_proj) for one in model.modules() if isinstance(one, STACKS)), default=0),
        parts=_parts(sizes),
        layers=layers,
        shape=read_shape(config, parameters=whole),
        push_tensors=len(pushed),
        largest_pushed_tensor=max(math.prod(shape) for shape in pushed.values()),
        push_bytes={dtype: layout(pushed, dtype=dtype)[1] for dtype in get_args(WireDtype)},
        saved_bytes=model_bytes(sum(math.prod(shape) for shape in pushed.values()), bf16=learner.bf16, buffers=kept),
        state_bytes=state_bytes(trained, bf16=learner.bf16, adapters=trained if learner.lora.rank else 0, ema=ema),
    )


def frozen_models(trained: Iterable[tuple[str, Any]], model: PlannedModel) -> list[PlannedModel | None]:
    """Return the frozen model of each stage that trains, if any: a teacher, or a reference, which is `model` itself.

    `trained` has the name and the settings of each stage. Raise as `planned_model` for a teacher.
    """
    return [_frozen_model(name, settings, model) for name, settings in trained]


def _frozen_model(stage: str, settings: Any, model: PlannedModel) -> PlannedModel | None:
    if isinstance(settings, DistillConfig) and settings.teacher is not None:
        return count_model(source_config(settings.teacher), LearnerConfig(), name=settings.teacher.path)
    if stage == "dpo" or (isinstance(settings, RlConfig) and settings.loss.needs_reference):
        return model
    return None


def reference_parameters(frozen: Iterable[PlannedModel | None], model: PlannedModel, *, adapters: bool) -> int:
    """Return the parameters of the largest frozen model. A reference of adapters is the model without them."""
    held = [one.parameters for one in frozen if one is not None and not (adapters and one is model)]
    return max(held, default=0)


def _skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """Build the model of a configuration on the meta device. Raise `ValueError` if transformers has no class for it."""
    try:
        with torch.device("meta"):
            built: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise ValueError(f"a model of type {config.model_type} is not a causal language model: {error}") from error
    return built


def _newton_schulz_entries(*shape: int) -> int:
    """Return the entries that Newton-Schulz has at once, as DeepSpeed computes it (`zeropower_via_gram_newtonschulz`).

    All matrices of a stack are computed at once. A square matrix has six copies. Others are multiplied by a polynomial of
    their Gram matrix, of the shorter side.
    """
    *stack, rows, columns = shape
    whole, gram = math.prod(shape), math.prod(stack) * min(rows, columns) ** 2
    return 6 * whole if rows == columns else max(whole + 7 * gram, 2 * whole + 4 * gram)


def _push_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a push of the whole weights, by their names in a checkpoint."""
    parameters = strip_adapters(dict(model.named_parameters()))
    meta = {name: torch.empty(parameter.shape, device="meta") for name, parameter in parameters.items()}
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, meta).items()}


def _parts(sizes: Mapping[str, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, kind in types_of_tensors(sizes).items():
        counts[_part(name, kind)] += sizes[name]
    return dict(counts)


def _part(name: str, kind: str) -> str:
    if kind == "embedding":
        return "output layer" if "lm_head" in name else "embedding"
    if kind == "expert":
        return "routed experts" if ".experts." in name else "MLP" if "_proj" in name else REST
    return PART.get(kind, REST)
