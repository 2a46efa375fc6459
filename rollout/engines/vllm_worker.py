"""The engine's end of a weight push: a weight-transfer engine of vLLM that reads a segment which was verified before.

vLLM's worker imports this module (it is named as `worker_extension_cls`), which registers the engine in its process.
"""

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollout.engines.expert_recorder import ExpertRecorder
from rollout.engines.vllm_settings import ON_CPU
from rollout.weights.manifest import WeightManifest, map_segment, require_stamp, tensors

BACKEND = "temper_shared_memory"
PARENT_CHECK_S = 2.0
"""Seconds between two looks at whether the parent process still lives."""


@dataclass
class SharedMemoryInit(WeightTransferInitInfo):
    """Nothing to agree on beforehand: each push describes itself."""


@dataclass
class SharedMemoryUpdate(WeightTransferUpdateInfo):
    """One push: the manifest of the segment as plain data."""

    manifest: dict[str, Any]


class SharedMemoryEngine(WeightTransferEngine[SharedMemoryInit, SharedMemoryUpdate]):
    """Loads weights from a segment on this host, layer by layer, so that repacked CPU weights are repacked again."""

    init_info_cls = SharedMemoryInit
    update_info_cls = SharedMemoryUpdate

    def init_transfer_engine(self, init_info: SharedMemoryInit) -> None:
        pass

    def start_weight_update(self) -> None:
        if ON_CPU:
            _repack_experts(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedMemoryUpdate) -> None:
        """Load every tensor of the segment. Raises `ValueError` where it does not hold what was verified, or no longer."""
        manifest = WeightManifest.from_json(update_info.manifest)
        segment = map_segment(manifest.path, nbytes=manifest.nbytes)
        require_stamp(segment, manifest)
        self.model.load_weights(tensors(segment, manifest))
        require_stamp(segment, manifest)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


def _repack_experts(model: torch.nn.Module) -> None:
    """Let expert layers make their kernels anew: vLLM repacks the weights of experts for a CPU only when it does that."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method.moe_kernel = None


class WorkerExtension:
    """Mixed into vLLM's worker; that vLLM imports this module for it registers the engine below in that process."""

    def end_with_parent(self) -> None:
        """Let this process end soon after the one that started it, even one that was killed: it holds gigabytes."""
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def record_experts(self) -> str:
        """Record from now on which experts the model chooses; returns why that can not be, or nothing."""
        try:
            self.expert_recorder = ExpertRecorder(self.model_runner)  # type: ignore[attr-defined]
        except ValueError as error:
            return str(error)
        return ""

    def take_experts(self, request: str) -> tuple[list[int], bytes]:
        """The recorded choices of a request: their shape, and the bytes of 16-bit integers."""
        choices = self.expert_recorder.take(request)
        return list(choices.shape), choices.tobytes()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)
