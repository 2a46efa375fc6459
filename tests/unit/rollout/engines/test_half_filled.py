"""The layers of which a push fills only a part, by vLLM's own counts of a reload."""

import pytest
import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload, record_metadata_for_reloading

from temper.rollout.engines.vllm_worker import _half_filled


class Quantizing(QuantizeMethodBase):
    """A method of vLLM's online quantization (`--quantization fp8`): it loads whole weights, and then quantizes them."""

    uses_meta_device = True

    def create_weights(self, layer: torch.nn.Module, *args: object, **settings: object) -> None: ...

    def apply(self, layer: torch.nn.Module, *args: object, **settings: object) -> torch.Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Convert the weight to the type that the kernel reads, and add its scale."""
        weight = layer.get_parameter("weight").data
        layer.weight = torch.nn.Parameter(weight.to(torch.float8_e4m3fn), requires_grad=False)
        layer.weight_scale = torch.nn.Parameter(weight.abs().max().reshape(1), requires_grad=False)


class FromFiles(Quantizing):
    """A method of quantized files, whose scales a push may lack."""

    uses_meta_device = False


class FusedLayer(LinearBase):
    """A layer of two parts, such as gate and up projection, each of 4 x 8."""

    def __init__(self, method: QuantizeMethodBase) -> None:
        torch.nn.Module.__init__(self)
        self.quant_method = method
        self.weight = torch.nn.Parameter(torch.zeros(8, 8), requires_grad=False)
        self.weight.weight_loader = load_part  # type: ignore[attr-defined]


def load_part(param: torch.nn.Parameter, loaded: torch.Tensor, part: int) -> None:
    param.data[4 * part : 4 * part + 4].copy_(loaded)


@pytest.mark.parametrize(("method", "seen"), [(Quantizing, True), (FromFiles, False)])
def test_a_part_that_a_push_lacks_is_seen_in_quantized_layers_too(method: type[QuantizeMethodBase], seen: bool) -> None:
    layer = FusedLayer(method())
    model = torch.nn.ModuleDict({"layer": layer})
    record_metadata_for_reloading(model)
    layer.quant_method.process_weights_after_loading(layer)
    initialize_layerwise_reload(model)
    assert _half_filled(model) == set()  # nothing is loaded: `_require_complete` compares names
    for part, missing in ((0, {"layer"} if seen else set()), (1, set())):
        layer.weight.weight_loader(layer.weight, torch.ones(4, 8), part)  # type: ignore[attr-defined]
        assert _half_filled(model) == missing
