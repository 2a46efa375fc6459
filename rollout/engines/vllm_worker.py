"""The engine's end of a weight update: a weight-transfer engine of vLLM that reads verified data.

vLLM's worker imports this module as its `worker_extension_cls`, which registers the engine in its process.
"""

import copy
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS

from temper.envs.core.errors import describe_error
from temper.rollout.engines.cache_pages import nbytes_of, release_pages, resident_bytes
from temper.rollout.engines.expert_stacks import has_stackable_experts, join_experts
from temper.rollout.engines.hybrid_prefixes import share_prompts
from temper.rollout.engines.runners.draft_sampler import DraftSampler
from temper.rollout.engines.runners.expert_recorder import ExpertRecorder, expert_layers
from temper.rollout.engines.runners.layer_recorder import LayerRecorder
from temper.rollout.engines.runners.seeded_sampler import SeededSampler
from temper.rollout.engines.runners.thinking_processor import ThinkingProcessor
from temper.rollout.engines.vllm_settings import ON_CPU
from temper.rollout.weights.buckets import BucketReceiver, IncomingWeights
from temper.rollout.weights.host_memory import release_free_memory
from temper.rollout.weights.manifest import LocalWeights, from_plain, read_weights
from temper.rollout.weights.transports import MappedFiles

BACKEND = "temper"
PARENT_CHECK_S = 2.0
"""Seconds between two checks of the parent process."""


@dataclass
class NothingToAgree(WeightTransferInitInfo):
    """Each update describes itself."""


@dataclass
class WeightSource(WeightTransferUpdateInfo):
    """Source of new weights: a local segment (`LocalWeights` as plain data), a model directory, or buckets
    (`IncomingWeights` as plain data).
    """

    segment: dict[str, Any] | None = None
    checkpoint: str | None = None
    incoming: dict[str, Any] | None = None


class WeightLoader(WeightTransferEngine[NothingToAgree, WeightSource]):
    """Loads weights layer by layer, so that packed CPU weights are packed again."""

    init_info_cls = NothingToAgree
    update_info_cls = WeightSource

    def init_transfer_engine(self, init_info: NothingToAgree) -> None:
        pass

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._mapped = MappedFiles()
        self._receiver = BucketReceiver()
        self.failure = ""
        """Error of the last buckets, or ""."""

    def start_weight_update(self) -> None:
        if ON_CPU:
            _repack_experts(self.model)
        served = _parameters(self.model)
        initialize_layerwise_reload(self.model)
        # In a serving model tied parameters count once. In a loading one packed parameters do not exist yet.
        self._expected = served & _parameters(self.model)

    def receive_weights(self, update_info: WeightSource) -> None:
        """Load the weights from the source. Raise `ValueError` if it lacks weights of the model."""
        self._loaded: set[str] = set()
        self._joins_experts = has_stackable_experts(self.model)
        if update_info.segment is not None:
            self._load_segment(from_plain(LocalWeights, update_info.segment))
        if update_info.checkpoint is not None:
            self._load_checkpoint(update_info.checkpoint)
        if update_info.incoming is not None:
            self._load_incoming(from_plain(IncomingWeights, update_info.incoming))

    def _load_segment(self, weights: LocalWeights) -> None:
        self._load(read_weights(weights, self._mapped, device=self.device))
        self._require_complete(self._expected - _unsent(self._expected))

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load some tensors, and note the parameters that they filled."""
        joined = join_experts(tensors) if self._joins_experts else tensors
        loaded: Iterable[str] | None = self.model.load_weights(joined)
        self._loaded |= _filled(self.model) if loaded is None else set(loaded)

    def _require_complete(self, expected: set[str]) -> None:
        """Raise `ValueError` if one of these parameters, or a part of a fused one, was not loaded."""
        missing = (expected - self._loaded) | _half_filled(self.model)
        if missing:
            raise ValueError(f"the source lacks {len(missing)} weights of the model, such as {min(missing)}")

    def _load_incoming(self, weights: IncomingWeights) -> None:
        """Load the learner's buckets, and keep an error as `failure`.

        It is not raised: vLLM reads one error of several failing processes, and takes the next one as the answer to the
        next call.
        """
        member = 1 + weights.number * self.parallel_config.world_size + self.parallel_config.rank
        self.failure = ""
        try:
            with disable_mtp_completeness_check():  # it expects a model's weights in one call
                self._receiver.receive(
                    weights.manifest, weights.bucket_group, self._load, member=member, device=self.device
                )
            self._require_complete(self._expected - _unsent(self._expected))
        except Exception as error:  # vLLM's own are mostly `KeyError` and `AssertionError`
            self.failure = describe_error(error)

    def _load_checkpoint(self, directory: str) -> None:
        """Load as vLLM does at its start. Raises `ValueError` if the directory lacks a parameter of the model."""
        config = copy.copy(self.model_config)
        config.model, config.model_weights, config.revision = directory, "", None
        loader = get_model_loader(self.vllm_config.load_config)
        assert isinstance(loader, DefaultModelLoader)
        self._load(loader.get_all_weights(config, self.model))
        self._require_complete(self._expected)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if ON_CPU:
            _repack_tied(self.model)
        release_free_memory()

    def shutdown(self) -> None:
        self._mapped.close()
        self._receiver.close()


def _parameters(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def _unsent(names: Iterable[str]) -> set[str]:
    """Return the parameters that no trainer has, and no push sends."""
    return {name for name in names if name.rpartition(".")[2] in SKIP_LOAD_TENSORS}


def _filled(model: torch.nn.Module) -> set[str]:
    """Return the parameters of reloaded layers, for a model that does not report them."""
    infos = [(name, layer, get_layerwise_info(layer)) for name, layer in model.named_modules()]
    layers = [(name, layer) for name, layer, info in infos if not info.can_load() or info.load_numel > 0]
    return {f"{name}.{own}" for name, layer in layers for own, _ in layer.named_parameters(recurse=False)}


def _half_filled(model: torch.nn.Module) -> set[str]:
    """Return the linear layers of which only a part was reloaded.

    Other layers, and those of quantized files, may have elements without a source. A layer that vLLM quantizes while it loads
    (fp8) has whole weights until then.
    """
    layers = [
        (name, get_layerwise_info(layer))
        for name, layer in model.named_modules()
        if isinstance(layer, LinearBase)
        and (isinstance(layer.quant_method, UnquantizedLinearMethod) or layer.quant_method.uses_meta_device)
    ]
    return {name for name, info in layers if info.can_load() and 0 < info.load_numel < info.load_numel_total}


def _repack_experts(model: torch.nn.Module) -> None:
    """Let expert layers rebuild their kernels: only then vLLM packs expert weights for a CPU."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method.moe_kernel = None


def _repack_tied(model: torch.nn.Module) -> None:
    """Pack the weights of an output layer that shares an embedding's weights.

    On a CPU it computes with a packed copy, which vLLM builds only for layers with separate weights.
    """
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    heads = [module for module in embeddings if isinstance(module, ParallelLMHead)]
    given = {id(module.weight) for module in embeddings if module not in heads}
    for head in heads:
        if id(head.weight) in given:
            head.quant_method.process_weights_after_loading(head)


class WorkerExtension:
    """Mixed into vLLM's worker. vLLM's import of this module registers the engine below in that process."""

    def end_with_parent(self) -> int:
        """End this process soon after its parent, even a killed one: it holds gigabytes.

        Returns its process id.
        """
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        return os.getpid()

    def release_cache(self) -> None:
        """Release the cache's memory on a CPU, where vLLM's sleep does nothing. Its content is lost."""
        if ON_CPU:
            release_pages(self.model_runner.kv_caches)  # type: ignore[attr-defined]

    def memory(self) -> tuple[int, int, int, int]:
        """Return the bytes of the weights, of the cache (on a CPU its resident part), of this process in main memory, and
        of its GPU's used memory (0 on a CPU).
        """
        runner = self.model_runner  # type: ignore[attr-defined]
        weights = sum(parameter.nbytes for parameter in runner.get_model().parameters())
        main = psutil.Process().memory_info().rss
        if ON_CPU:
            return weights, resident_bytes(runner.kv_caches), main, 0
        free, total = torch.cuda.mem_get_info()
        return weights, nbytes_of(runner.kv_caches), main, total - free

    def weight_failure(self) -> str:
        """Return the error of the last buckets, or ""."""
        return str(self.weight_transfer_engine.failure)  # type: ignore[attr-defined]

    def sample_seeded(self) -> None:
        """Replace the runner's sampler by `SeededSampler`."""
        sampler = self.model_runner.sampler  # type: ignore[attr-defined]
        sampler.topk_topp_sampler = SeededSampler(sampler.topk_topp_sampler)

    def sample_drafts(self, limited: bool) -> None:
        DraftSampler(self.model_runner, [ThinkingProcessor] if limited else [])  # type: ignore[attr-defined]

    def share_prompts(self) -> None:
        share_prompts(self.model_runner)  # type: ignore[attr-defined]

    def record_experts(self) -> str:
        """Record expert choices from now on. Return the reason if that is impossible, else ""."""
        try:
            self.expert_recorder = ExpertRecorder(self.model_runner)  # type: ignore[attr-defined]
        except ValueError as error:
            return str(error)
        return ""

    def expert_layers(self) -> list[int]:
        return expert_layers(self.model_runner.get_model())  # type: ignore[attr-defined]

    def record_layers(self) -> str:
        """Record hidden states from now on. Return the reason if that is impossible, else ""."""
        runner = self.model_runner  # type: ignore[attr-defined]
        layers = runner.model_config.hf_text_config.num_hidden_layers
        try:
            self.layer_recorder = LayerRecorder(
                runner.get_model(), eager=runner.model_config.enforce_eager, layers=layers
            )
        except ValueError as error:
            return str(error)
        return ""

    def take_layers(self, file: str) -> int:
        """End the recording. The first process writes it. Return the number of its tokens."""
        self.layer_recorder.end()
        return self.layer_recorder.take(file) if self.rank == 0 else 0  # type: ignore[attr-defined]

    def take_experts(self, request: str) -> tuple[list[int], bytes]:
        """Return the recorded choices of a request: their shape, and the bytes of 16-bit integers."""
        choices = self.expert_recorder.take(request)
        return list(choices.shape), choices.tobytes()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


WeightTransferEngineFactory.register_engine(BACKEND, WeightLoader)
