"""Models on a GPU: their recurrent layers are computed by kernels, or not at all."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.nemotron_h import modeling_nemotron_h

from temper.learner.models import mamba_scan
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.learner.models.kernels import find_kernel, find_references, require_kernels
from temper.learner.models.loading import read_model

SMALL = FreshModelConfig(pattern="M*", hidden_size=16, mamba_heads=2)
no_kernels = pytest.mark.skipif(importlib.util.find_spec("mamba_ssm") is not None, reason="mamba-ssm is installed")


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Restores names in transformers after a test."""
    names = ("mamba2_chunk_scan", "mamba2_split_conv1d_scan_combined", "causal_conv1d_fn")
    before = {name: vars(modeling_nemotron_h)[name] for name in names}
    yield
    vars(modeling_nemotron_h).update(before)


@no_kernels
def test_a_hybrid_is_not_read_for_a_gpu_without_its_kernels(tmp_path: Path) -> None:
    make_model(tmp_path, SMALL, seed=0)
    with pytest.raises(ValueError, match=r"NemotronHForCausalLM.*mamba_ssm.*ModuleNotFoundError"):
        read_model(tmp_path, device="cuda")
    assert isinstance(read_model(tmp_path, device="cpu"), torch.nn.Module)


def test_a_model_without_recurrent_layers_needs_no_kernels() -> None:
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    )
    assert find_references(model) == {}
    require_kernels(model, device="cuda")


@no_kernels
def test_what_transformers_calls_is_read_from_transformers() -> None:
    assert find_kernel(mamba_scan.REFERENCE) == ("mamba_ssm", False)
    assert find_kernel(mamba_scan.CONVOLUTION) == ("causal_conv1d", False)
    assert find_kernel(mamba_scan.chunk_scan) is None


@no_kernels
def test_on_a_gpu_the_scan_stays_transformers(as_it_was: None) -> None:
    scan = modeling_nemotron_h.mamba2_chunk_scan
    mamba_scan.install(device="cuda")
    assert modeling_nemotron_h.mamba2_chunk_scan is scan
    assert modeling_nemotron_h.mamba2_split_conv1d_scan_combined("any", of="them") is None
