"""The choice of vLLM's model runner and of speculative decoding, which changes no token."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import tiny_models

from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.config import EngineConfig, Runner
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.runners.choice import RunnerName, choose_runner, speculative_config
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.sampling import Sampling
from temper.rollout.trajectory import WeightVersion

CONFIG = EngineConfig(max_model_len=256, max_sequences=32)
TEXT = (
    "<|im_start|>user\n"
    + "the cat sat on the mat, the cat sat on the hat. " * 2
    + "<|im_end|>\n<|im_start|>assistant\n<think>\n"
)
SAMPLINGS = [
    Sampling(),
    Sampling(top_k=20, top_p=0.9),
    Sampling(temperature=0.3),
    Sampling(temperature=0.0),
]


@pytest.mark.parametrize(
    ("wanted", "records_pipeline", "triton", "runner"),
    [
        ("auto", False, False, "v1"),
        ("v1", False, True, "v1"),
        ("auto", False, True, "v2"),
        ("v2", False, True, "v2"),
        ("auto", True, True, "v1"),
    ],
)
def test_the_first_runner_serves_where_the_second_can_not(
    wanted: Runner, records_pipeline: bool, triton: bool, runner: RunnerName
) -> None:
    assert choose_runner(wanted, records_pipeline=records_pipeline, triton=triton) == runner


def test_the_second_runner_is_refused_where_it_can_not_serve() -> None:
    with pytest.raises(ValueError, match="runner=v2.*Triton"):
        choose_runner("v2", triton=False)
    with pytest.raises(ValueError, match="runner=v2.*router_replay"):
        choose_runner("v2", records_pipeline=True, triton=True)


def model_with(directory: Path, *names: str) -> Path:
    """A model of two layers by its name alone, with tensors of these names."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"num_hidden_layers": 2}), encoding="utf-8")
    save_file({name: torch.zeros(1) for name in names}, directory / "model.safetensors")
    return directory


def test_heads_guess_where_a_model_has_them(tmp_path: Path) -> None:
    own = [
        model_with(tmp_path / "named", "model.layers.1.mlp.weight", "mtp.layers.0.eh_proj.weight"),
        model_with(tmp_path / "behind", "model.layers.1.mlp.weight", "model.layers.2.eh_proj.weight"),
    ]
    none = model_with(tmp_path / "none", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight")
    config = EngineConfig(speculation="mtp", draft_tokens=2)
    for model in own:
        expected = {"method": "mtp", "model": str(model), "num_speculative_tokens": 2}
        assert speculative_config(config, "v2", model, on_cpu=False) == expected
        assert speculative_config(replace(config, draft_heads=str(model)), "v2", none, on_cpu=False) == expected
    with pytest.raises(ValueError, match=r"speculation=mtp.*none.*rollout.engine.draft_heads"):
        speculative_config(config, "v2", none, on_cpu=False)


def test_both_runners_support_ngram_speculation(tmp_path: Path) -> None:
    config = EngineConfig(speculation="ngram")
    here, there = (
        speculative_config(config, "v1", tmp_path, on_cpu=True),
        speculative_config(config, "v2", tmp_path, on_cpu=False),
    )
    assert here is not None
    assert there is not None
    assert (here["method"], there["method"]) == ("ngram", "ngram_gpu")
    assert here["num_speculative_tokens"] == there["num_speculative_tokens"] == 3
    with pytest.raises(ValueError, match="speculation=ngram.*rollout.engine.runner=v2"):
        speculative_config(config, "v1", tmp_path, on_cpu=False)
    with pytest.raises(ValueError, match="speculation=ngram.*learner.router_replay"):
        speculative_config(config, "v1", tmp_path, record_experts=True)
    assert speculative_config(EngineConfig(), "v2", tmp_path) is None


async def sampled(model: Path, config: EngineConfig) -> tuple[list[Completion], int]:
    """Answers of many kinds sampled at once, and the number of accepted drafts."""
    tokenizer = byte_tokenizer()
    prompt = tuple(tokenizer(TEXT)["input_ids"])
    ends = (tokenizer.eos_token_id,)
    engine = VllmEngine(model, config, version=WeightVersion(step=0), ends=ends, tags=ThinkingTags(tokenizer))
    try:
        await engine.start()
        said = (
            engine.generate(
                TurnRequest(
                    prompt_ids=prompt[number % 2 :],
                    max_tokens=60,
                    seed=number,
                    sampling=SAMPLINGS[number % len(SAMPLINGS)],
                    limit=ThinkingLimit(tokens=20, grace=4) if number % 3 == 0 else None,
                )
            )
            for number in range(20)
        )
        return list(await asyncio.gather(*said)), engine.take_stats().accepted_tokens
    finally:
        await engine.close()


@pytest.mark.slow
def test_a_seed_gives_the_same_tokens_with_drafts_and_without(tmp_path: Path) -> None:
    model = tiny_models.qwen3(tmp_path / "model")
    plain, none = asyncio.run(sampled(model, CONFIG))
    drafted, accepted = asyncio.run(sampled(model, replace(CONFIG, speculation="ngram")))
    assert (none, accepted > 20) == (0, True)
    for one, other in zip(plain, drafted, strict=True):
        assert (one.token_ids, one.injected_T, one.finished) == (other.token_ids, other.injected_T, other.finished)
        gaps = [abs(a - b) for a, b in zip(one.logprobs_T, other.logprobs_T, strict=True) if a == a]
        assert max(gaps) < 1e-5
