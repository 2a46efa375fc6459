"""Eight lines, submitted as a job, train a real model of each family with its own chat template on a mixture of tasks."""

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.fault_job import rows
from support.model_families import tokenizer_of
from support.ray_head import local_head
from support.reference_engine import Family
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.source import open_source
from temper.learner.models.fresh import padded_size
from temper.learner.models.loading import read_model
from temper.learner.models.logprobs import token_logprobs
from temper.orchestrator.cli.submit import COMMAND, run_job
from temper.rollout.tokenizer import load_tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
}
CONFIG = """\
name: {name}
model: {{path: {model}}}
stages: [init, sft, rl, eval]
envs: {{{envs}, multiple_choice: {{share: 3, length_limit: 32, weights: {{correct: 1, length: 0.5}}}}}}
sft: {{steps: 3, batch_size: 8, optim: {{learning_rate: 1.0e-2, warmup_steps: 0}}}}
rl: {{steps: 3, groups_per_step: 6, group_size: 8, max_lag: 0, optim: {{learning_rate: 1.0e-3, warmup_steps: 0}}}}
eval: {{tasks: 4, samples: 2}}
rollout: {{limits: {{turn_tokens: 64, total_tokens: 2048}}, engine: {{max_model_len: 2048}}}}
"""
"""A user's configuration. It also rewards brevity, so that the rewards of an untrained model's answers differ."""
TOOLS = ("math", "tool_use", "instruction_following")
NO_TOOLS = ("math", "short_answer", "instruction_following")
TOLERANCE = 1e-5
"""Largest difference of a log-probability, in nats, in float32."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model family: its chat template, its model by vocabulary size, and the environments that the template supports."""

    template: str
    make: Callable[[int], PreTrainedModel]
    envs: tuple[str, ...] = TOOLS
    tied: bool = False


def qwen3(vocabulary: int) -> PreTrainedModel:
    """As the family's small models: the output layer is the embedding."""
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, num_hidden_layers=2, tie_word_embeddings=True, **SHAPE))


def llama(vocabulary: int) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_hidden_layers=2, **SHAPE))


def gemma3(vocabulary: int) -> PreTrainedModel:
    """Tied by default, with scaled embeddings, capped logits, and a layer with a window of 32 tokens."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
    shape = {**SHAPE, "num_hidden_layers": 2, "query_pre_attn_scalar": 32, "final_logit_softcapping": 8.0}
    return Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=vocabulary, **layers, **shape))


def nemotron_h(vocabulary: int) -> PreTrainedModel:
    """A hybrid of Mamba-2, attention and MLPs. vLLM's CPU build lacks experts of this family."""
    mamba = {
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "expand": 2,
        "n_groups": 1,
        "ssm_state_size": 16,
        "chunk_size": 32,
    }
    kinds = ["linear_attention", "mlp", "full_attention", "mlp"]
    return NemotronHForCausalLM(NemotronHConfig(vocab_size=vocabulary, layers_block_type=kinds, **SHAPE, **mamba))


CASES = {
    "qwen3": Case(template="qwen3", make=qwen3, tied=True),
    "llama": Case(template="llama3_1", make=llama),
    "gemma": Case(template="gemma3", make=gemma3, envs=NO_TOOLS, tied=True),
    "nemotron_h": Case(template="nemotron_3_nano", make=nemotron_h),
}


def saved(case: Case, directory: Path) -> Path:
    """The family's model and tokenizer, saved as a user has them."""
    tokenizer = tokenizer_of(case.template)
    torch.manual_seed(0)
    model = case.make(padded_size(tokenizer)).to(torch.float32)
    for settings in (model.config, model.generation_config):
        settings.pad_token_id, settings.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
        settings.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def reference_is_right(model: Path, envs: Sequence[str]) -> None:
    """Reference turns of the tasks, through the chat template of the saved model, earn 1 without a fault."""
    family = Family(load_tokenizer(model))
    for name in envs:
        env = bind(name, EnvConfig())
        assert env.definition.demonstrate is not None
        source = open_source(env, split="heldout", seed=1)
        for index in range(4):
            task = source.task(index)
            played = family.play(task, env.definition.demonstrate(task))
            assert played.failure is None, (name, played.failure)
            assert [turn.faults for turn in played.turns] == [()] * len(played.turns), (name, played.turns)
            assert played.reward == 1.0, (name, played.score)


def largest_gap(model: PreTrainedModel, file: Path) -> tuple[float, int]:
    """Log-probability difference between the engine and a saved model, and the number of tokens."""
    gaps = []
    for line in file.read_text(encoding="utf-8").splitlines():
        seen: list[int] = []
        for turn in json.loads(line)["turns"]:
            seen += turn["context_ids"] + turn["sampled_ids"]
            ids_1T = torch.tensor([seen])
            with torch.no_grad():
                expected_T = token_logprobs(model(input_ids=ids_1T).logits, ids_1T)[0, -len(turn["sampled_ids"]) :]
            gaps += [abs(a - b) for a, b in zip(turn["logprobs"], expected_T.tolist(), strict=True)]
    return max(gaps), len(gaps)


def changed(before: Path, after: Path) -> float:
    """The share of tensors that differ between two checkpoints of the same tensors."""
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert old.keys() == new.keys()
    return sum(not torch.equal(old[name], new[name]) for name in old) / len(old)


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "qwen3" else [pytest.mark.slow]) for name in CASES]
)
def test_eight_lines_train_a_model_of_a_family_on_mixed_tasks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    model = saved(case, tmp_path / "model")
    text = CONFIG.format(name=name, model=model, envs=", ".join(f"{env}: {{}}" for env in case.envs))
    assert len(text.splitlines()) == 8
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")

    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # travels with the job, and is what a run tells its workers too
    access = os.environ.get("RAY_AUTH_MODE")
    command = shlex.join([sys.executable, *COMMAND[1:], str(tmp_path / "run.yaml"), f"runs_dir={tmp_path}/runs"])
    with local_head() as server:
        assert run_job(server, f"cd {shlex.quote(os.getcwd())} && exec {command}", {}) == 0
    assert os.environ.get("RAY_AUTH_MODE") == access  # else this process could not start another cluster
    run = tmp_path / "runs" / name
    printed = (run / "logs" / "ray").glob("worker-*")
    assert any("TrainerWorker" in file.read_text(errors="replace") for file in printed)

    learnt, reinforced = rows(run, "sft"), rows(run, "rl")
    assert [row.step for row in learnt] == [row.step for row in reinforced] == [1, 2, 3]
    for row in (*learnt, *reinforced):
        assert math.isfinite(row.values["train/loss"])
        assert row.values["train/grad_norm"] > 0
    assert learnt[-1].values["train/loss"] < learnt[0].values["train/loss"]
    assert all(row.values["train/mismatch_abs"] < TOLERANCE for row in reinforced)
    after_sft, after_rl = run / "checkpoints" / "sft" / "000003", run / "checkpoints" / "rl" / "000003"
    assert changed(model, after_sft) > 0.9
    assert changed(after_sft, after_rl) > 0.9

    trained = AutoModelForCausalLM.from_pretrained(after_rl)
    assert (trained.get_output_embeddings().weight is trained.get_input_embeddings().weight) == case.tied
    gap, tokens = largest_gap(read_model(after_rl).eval(), run / "trajectories" / "eval-rl.jsonl")
    assert tokens > 100
    assert gap < TOLERANCE
    (evaluation,) = (json.loads(file.read_text()) for file in (run / "eval").glob("*.json"))
    assert evaluation["version"] == 3  # the weights after three pushes, by each token's own version
    assert evaluation["envs"].keys() == {*case.envs, "multiple_choice"}
    for result in evaluation["envs"].values():
        assert (result["samples"], result["stale"], result["failures"]) == (8, 0, 0)
    reference_is_right(after_rl, (*case.envs, "multiple_choice"))
