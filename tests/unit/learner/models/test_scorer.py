"""Log-probabilities and entropies without the logits of a whole pass, against plain computations."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.refusals import refuses
from support.tiny_models import gemma2, llama, nemotron_h, qwen3, qwen3_tied
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma4TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    RecurrentGemmaConfig,
)

from temper.learner.batches.micro_batches import Prompts
from temper.learner.config import Recomputed
from temper.learner.models import mamba_scan
from temper.learner.models.loading import read_model, recompute
from temper.learner.models.logprobs import float32_logits, token_entropies, token_logprobs, vocabulary_scores
from temper.learner.models.scorer import Scorer
from temper.learner.models.shared_prompt import causal_logits, require_recomputable

FAMILIES = {"nemotron_h": nemotron_h, "qwen3": qwen3, "llama": llama, "tied": qwen3_tied}
V, D, N = 37, 8, 23


def layer(dtype: torch.dtype) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    hidden_ND = torch.randn(N, D, generator=draw, dtype=torch.float64)
    weight_VD = torch.randn(V, D, generator=draw, dtype=torch.float64)
    bias_V = torch.randn(V, generator=draw, dtype=torch.float64)
    return [value.to(dtype).requires_grad_() for value in (hidden_ND, weight_VD, bias_V)]


def gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad.double()


def weighed(scores: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A sum in which every token's two scores count differently."""
    factors = torch.linspace(-1.0, 2.0, N, dtype=scores[0].dtype)
    return (factors * scores[0]).sum() + (factors.flip(0) * scores[1]).sum()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 22, 23, 100])
def test_scores_in_pieces_equal_float64(tokens, bias, warm):
    targets_N = torch.arange(N) * 5 % V
    used = 3 if bias else 2
    exact = layer(torch.float64)[:used]
    temperatures_N = torch.linspace(0.5, 2.0, N) if warm else None
    divisors_N = torch.ones(N) if temperatures_N is None else temperatures_N
    logs_NV = (torch.nn.functional.linear(*exact) / divisors_N.double()[:, None]).log_softmax(-1)
    expected = (logs_NV[torch.arange(N), targets_N], -(logs_NV.exp() * logs_NV).sum(-1))
    weighed(expected).backward()

    single = layer(torch.float32)[:used]
    hidden_ND, weight_VD = single[:2]
    bias_V = single[2] if bias else None
    found = vocabulary_scores(
        hidden_ND, weight_VD, bias_V, targets_N, entropy=True, tokens=tokens, temperatures_N=temperatures_N
    )
    weighed(found).backward()
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours.double(), theirs, atol=1e-5)
    for ours, theirs in zip(single, exact, strict=True):
        assert torch.allclose(gradient(ours), gradient(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [5, 100])
def test_an_output_layer_in_float32_adds_no_rounding_to_bfloat16(tokens: int) -> None:
    targets_N = torch.arange(N) * 5 % V
    half = layer(torch.bfloat16)
    exact = [value.detach().double().requires_grad_() for value in half]
    logs_NV = torch.nn.functional.linear(*exact).log_softmax(-1)
    expected = (logs_NV[torch.arange(N), targets_N], -(logs_NV.exp() * logs_NV).sum(-1))
    weighed(expected).backward()
    found, rounded = (
        vocabulary_scores(half[0], half[1], half[2], targets_N, entropy=True, tokens=tokens, float32=float32)
        for float32 in (True, False)
    )
    weighed(found).backward()
    for number in range(2):
        assert torch.allclose(found[number].double(), expected[number], atol=1e-5)
    assert not torch.allclose(rounded[0].double(), expected[0], atol=1e-3)
    for ours, theirs in zip(half, exact, strict=True):
        assert torch.allclose(gradient(ours), gradient(theirs), rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("family", [qwen3, gemma2], ids=["in pieces", "whole logits"])
def test_a_float32_head_of_a_bfloat16_model_is_exact(family: Callable[[Path], Path], tmp_path: Path) -> None:
    """The hidden states are the same. After them nothing is rounded, a cap included."""
    model = read_model(family(tmp_path)).bfloat16().eval()
    ids_BT, wanted_BT, _ = a_batch()
    wanted_BT[:, 0] = False
    cap = model.config.to_dict().get("final_logit_softcapping")
    with torch.no_grad():
        hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
        logits_BTV = hidden_BTD.double() @ model.lm_head.weight.double().T
        logits_BTV = cap * (logits_BTV / cap).tanh() if cap else logits_BTV
        found = Scorer(model, model, tokens=8, float32_head=True)(ids_BT, wanted_BT).logprobs_BT
    expected_BT = logits_BTV[:, :-1].log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
    assert torch.allclose(found[:, 1:].double(), expected_BT * wanted_BT[:, 1:], atol=1e-5)


class Calls(TorchDispatchMode):
    """Remembers the operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_gpu_multiplies_half_precision_with_a_float32_result() -> None:
    with FakeTensorMode():
        hidden_ND, weight_VD = (torch.empty(rows, D, dtype=torch.bfloat16, device="cuda") for rows in (N, V))
        with Calls() as calls:
            logits_NV = float32_logits(hidden_ND, weight_VD, None)
    assert (logits_NV.shape, logits_NV.dtype) == ((N, V), torch.float32)
    assert "aten.mm.dtype" in calls.names
    assert not any("_to_copy" in name for name in calls.names)


def test_frozen_weights_get_no_gradient():
    hidden_ND, weight_VD, _ = layer(torch.float32)
    weight_VD.requires_grad_(False)
    logprobs_N, _ = vocabulary_scores(hidden_ND, weight_VD, None, torch.zeros(N).long(), entropy=False, tokens=4)
    logprobs_N.sum().backward()
    assert weight_VD.grad is None
    assert gradient(hidden_ND).abs().sum() > 0


class Rows(TorchDispatchMode):
    """Remembers the most rows of any tensor of logits, and of nothing that has the output layer's transposed shape."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = (hidden, vocabulary)
        self.vocabulary = vocabulary
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (self.vocabulary,) != tensor.shape:
                rows = tensor.shape[:-1].numel() if tuple(tensor.shape) != self.weight else 0
                self.most = max(self.most, rows)
        return result


def model_of(family: str, folder) -> PreTrainedModel:
    mamba_scan.install()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(FAMILIES[family](folder / family), dtype=torch.float32)
    mamba_scan.match_engine(model)
    return model


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def a_batch() -> tuple[torch.Tensor, torch.Tensor, Prompts]:
    """Five answers of up to 12 tokens to two prompts. About two thirds of the tokens are trained."""
    draw = torch.Generator().manual_seed(1)
    ids_BT = torch.randint(0, 200, (5, 12), generator=draw)
    wanted_BT = torch.rand(5, 12, generator=draw) > 0.3
    prompts = Prompts.pad([list(range(9)), list(range(20, 26))], rows_P=[3, 2], pad_id=0)
    return ids_BT, wanted_BT, prompts


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_scorer_equals_the_scores_of_all_logits(family, shared, tmp_path):
    model = model_of(family, tmp_path).train()
    ids_BT, wanted_BT, prompts = a_batch()
    behind = prompts if shared else None
    wanted_BT[:, 0] = False
    warm_B = torch.linspace(0.5, 2.0, len(ids_BT))
    logits_BTV = causal_logits(model, model.config, ids_BT, behind) / warm_B[:, None, None]
    expected = torch.stack([token_logprobs(logits_BTV, ids_BT), token_entropies(logits_BTV)]) * wanted_BT
    (expected[0].sum() + 0.3 * expected[1].sum()).backward()
    plain = gradients(model)

    model.zero_grad()
    scorer = Scorer(model, model, tokens=7)
    with Rows(model.config.hidden_size, model.config.vocab_size) as rows:
        scores = scorer(ids_BT, wanted_BT, behind, entropy=True, temperatures_B=warm_B)
        (scores.logprobs_BT.sum() + 0.3 * scores.entropies_BT.sum()).backward()
    assert torch.allclose(torch.stack([scores.logprobs_BT, scores.entropies_BT]), expected, atol=1e-5)
    for name, found in gradients(model).items():
        assert torch.allclose(found, plain[name], rtol=1e-4, atol=1e-5), name
    assert rows.most <= 7  # of 34 tokens with a score
    assert model(input_ids=ids_BT, use_cache=False).logits.shape == (5, 12, model.config.vocab_size)


@contextmanager
def kept_bytes(model: PreTrainedModel) -> Iterator[list[int]]:
    """The bytes that autograd keeps for the backward pass, without the model's parameters."""
    storages: dict[int, torch.UntypedStorage] = {}
    total: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield total
    parameters = {one.untyped_storage().data_ptr() for one in model.parameters()}
    total.append(sum(one.nbytes() for place, one in storages.items() if place not in parameters))


def kept(model: PreTrainedModel, ids_BT: torch.Tensor, kind: Recomputed) -> tuple[float, int]:
    """The loss of a batch after its backward pass, and the bytes that the forward pass kept for it."""
    recompute(model, kind)
    with kept_bytes(model) as total:
        loss = Scorer(model, model, tokens=100)(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)).logprobs_BT.mean()
    loss.backward()
    return loss.item(), total[0]


@pytest.mark.parametrize(("family", "kind"), [("nemotron_h", "selective"), *((name, "full") for name in FAMILIES)])
def test_recomputed_activations_take_less_memory(family: str, kind: Recomputed, tmp_path: Path) -> None:
    ids_BT = torch.randint(0, 200, (4, 96), generator=torch.Generator().manual_seed(2))
    ways: tuple[Recomputed, ...] = ("none", kind)
    models = {what: model_of(family, tmp_path).train() for what in ways}
    found = {what: kept(models[what], ids_BT, what) for what in ways}
    assert found[kind][0] == pytest.approx(found["none"][0], rel=1e-6)
    assert found[kind][1] < 0.8 * found["none"][1]
    plain = gradients(models["none"])
    for name, again in gradients(models[kind]).items():
        assert torch.allclose(again, plain[name], rtol=1e-4, atol=1e-6), name


def score_behind_prompts(model: PreTrainedModel, kind: Recomputed) -> tuple[torch.Tensor, int]:
    """Log-probabilities of answers to shared prompts, after the backward pass, and the bytes that were held for it."""
    ids_BT, wanted_BT, prompts = a_batch()
    recompute(model, kind)
    scorer = Scorer(model, model, tokens=100)
    before = find_storages()
    logprobs_BT = scorer(ids_BT, wanted_BT, prompts).logprobs_BT
    held = sum(nbytes for place, nbytes in find_storages().items() if place not in before)
    logprobs_BT.sum().backward()
    return logprobs_BT.detach(), held


def find_storages() -> dict[int, int]:
    """The bytes of the tensors that Python can reach, by address. Recomputed layers keep theirs in closures."""
    gc.collect()
    storages = [one.untyped_storage() for one in gc.get_objects() if type(one) is torch.Tensor]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("nemotron_h", "selective"),
        ("nemotron_h", "full"),
        ("qwen3", "full"),
        *(
            pytest.param(name, "full", marks=pytest.mark.slow)
            for name in FAMILIES
            if name not in ("nemotron_h", "qwen3")
        ),
    ],
)
def test_activations_are_recomputed_behind_shared_prompts_too(family: str, kind: Recomputed, tmp_path: Path) -> None:
    plain, again = model_of(family, tmp_path).train(), model_of(family, tmp_path).train()
    expected, plain_bytes = score_behind_prompts(plain, "none")
    found, again_bytes = score_behind_prompts(again, kind)
    assert torch.allclose(found, expected, atol=1e-6)
    assert again_bytes < (0.6 if kind == "full" else 0.95) * plain_bytes
    kept_ones = gradients(plain)
    for name, gradient_again in gradients(again).items():
        assert torch.allclose(gradient_again, kept_ones[name], rtol=1e-4, atol=1e-6), name


def test_a_model_that_loses_recomputed_prompts_is_refused() -> None:
    torch.manual_seed(0)
    gpt2, qwen = (
        AutoModelForCausalLM.from_config(config).train()
        for config in (GPT2Config(**GPT2), Qwen3Config(**SHAPE, **HEADS))
    )
    for model in (gpt2, qwen):
        require_recomputable(model, model)
        recompute(model, "full")
    require_recomputable(qwen, qwen)
    with refuses("learner.shared_prompts=false"):
        require_recomputable(gpt2, gpt2)


def test_a_layer_with_another_caches_name_is_recomputed() -> None:
    ids_BT, wanted_BT, prompts = a_batch()
    found = []
    for kind in ("none", "full"):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(GPTNeoXConfig(**SHAPE, num_attention_heads=2)).train()
        recompute(model, kind)
        Scorer(model, model, tokens=100)(ids_BT, wanted_BT, prompts).logprobs_BT.sum().backward()
        found.append(gradients(model))
    for name, gradient_again in found[1].items():
        assert torch.allclose(gradient_again, found[0][name], rtol=1e-4, atol=1e-6), name


GPT2 = {
    "vocab_size": 200,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
SHAPE = {"vocab_size": 200, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_n_groups": 1}
GEMMA4 = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 16}
LOUD = {"initializer_range": 0.5}
CHANGED = {
    "granite": lambda: GraniteConfig(**SHAPE, num_attention_heads=2, logits_scaling=8.0),
    "cohere": lambda: CohereConfig(**SHAPE, num_attention_heads=2, logit_scale=0.25),
    "gemma2": lambda: Gemma2Config(**SHAPE, **HEADS, **LOUD, final_logit_softcapping=5.0),
    "gemma4": lambda: Gemma4TextConfig(**SHAPE, **HEADS, **LOUD, **GEMMA4, final_logit_softcapping=5.0),
    "recurrent_gemma": lambda: RecurrentGemmaConfig(**SHAPE, num_attention_heads=2, logits_soft_cap=5.0, lru_width=32),
    "falcon_h1": lambda: FalconH1Config(**SHAPE, **HEADS, **MAMBA, **LOUD, lm_head_multiplier=0.05),
}


@pytest.mark.parametrize("make", [*CHANGED.values(), lambda: Qwen3Config(**SHAPE, **HEADS)], ids=[*CHANGED, "qwen3"])
def test_scores_are_those_of_the_logits_that_a_model_returns(make: Callable[[], PreTrainedConfig]) -> None:
    """Whether it scales or caps them after its output layer, or returns them as they are."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make()).eval()
    ids_BT, wanted_BT, _ = a_batch()
    wanted_BT[:, 0] = False
    warm_B = torch.linspace(0.5, 2.0, len(ids_BT))
    with torch.no_grad():
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits.double() / warm_B[:, None, None]
        scores = Scorer(model, model, tokens=8)(ids_BT, wanted_BT, entropy=True, temperatures_B=warm_B)
    logs_BTV = logits_BTV[:, :-1].log_softmax(-1)
    logprobs_BT = logs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
    entropies_BT = -(logs_BTV.exp() * logs_BTV).sum(-1)
    for found, expected in ((scores.logprobs_BT, logprobs_BT), (scores.entropies_BT, entropies_BT)):
        assert torch.allclose(found[:, 1:].double(), expected * wanted_BT[:, 1:], atol=1e-5)
    assert logprobs_BT.std() > 0.01


def test_capped_attention_scores_are_kept_on_loading(tmp_path: Path) -> None:
    folder, (ids_BT, _, _) = gemma2(tmp_path), a_batch()
    eager, fused = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=kind)
        for kind in ("eager", "sdpa")
    )
    with torch.no_grad():
        capped, plain, found = (model(input_ids=ids_BT).logits for model in (eager, fused, read_model(folder)))
    assert torch.equal(found, capped)
    assert not torch.allclose(found, plain, atol=1e-4)
