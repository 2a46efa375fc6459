"""The recipes' models and data on the hub, in a small form: the same names and columns, models of the same families."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support import tiny_models
from support.model_families import tokenizer_of
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    NemotronHForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from temper.learner.models.fresh import hybrid_config, padded_size

ROOT = Path(__file__).resolve().parents[2]


def rows(*given: Mapping[str, object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in given).encode()


def gsm(number: int) -> dict[str, object]:
    return {"question": f"Tom has {number} pens and buys {number}. How many?", "answer": f"#### {2 * number}"}


def deep(number: int, difficulty: float) -> dict[str, object]:
    return {"question": f"What is {number}^2?", "final_answer": str(number**2), "difficulty": difficulty, "topic": "n"}


def arc(number: int) -> dict[str, object]:
    choices = {"text": [str(number), str(number + 1)], "label": ["A", "B"]}
    return {"id": str(number), "question": f"What is {number}+1?", "choices": choices, "answerKey": "B"}


def workplace(number: int) -> dict[str, object]:
    tool = {"type": "function", "name": "send", "parameters": {"type": "object", "properties": {}}}
    params = {"input": [{"role": "user", "content": f"Send mail {number}."}], "tools": [tool]}
    row = {"id": number, "responses_create_params": params, "ground_truth": [], "environment_name": "workbench"}
    return row | {"initial_count": 1, "expected_count": number}  # what the server of the tests goes by


def chat(number: int, tokens: int) -> dict[str, object]:
    said = f"<think>\nTwice {number}.\n</think>\n\nIt is {2 * number}."
    messages = [{"role": "user", "content": f"Twice {number}?"}, {"role": "assistant", "content": said}]
    return {"messages": messages, "num_tokens": tokens, "source": "made"}


def preferred(number: int) -> dict[str, object]:
    """In UltraFeedback's format: both answers are dialogues, and `messages` is the preferred one."""
    asked = {"role": "user", "content": f"Twice {number}?"}
    chosen, rejected = (
        [asked, {"role": "assistant", "content": text}] for text in (f"It is {2 * number}.", "No idea.")
    )
    scores: dict[str, object] = {"score_chosen": 8.0, "score_rejected": 3.0}
    return {"prompt": asked["content"], "chosen": chosen, "rejected": rejected, "messages": chosen} | scores


def card(config: str | None, **splits: str) -> bytes:
    files = "".join(f"  - {{split: {split}, path: {path}}}\n" for split, path in splits.items())
    return f"---\nconfigs:\n- config_name: {config or 'default'}\n  data_files:\n{files}---\n".encode()


MBPP = {"task_id": 601, "text": "Add one.", "code": "def f(a): return a+1", "test_list": ["assert f(1) == 2"]}
MBPP |= {"test_setup_code": "", "challenge_test_list": []}
EVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def f(a):\n    """Add one."""\n',
    "canonical_solution": "    return a + 1\n",
}
EVAL |= {"test": "def check(candidate):\n    assert candidate(1) == 2\n", "entry_point": "f"}
MATH = {"problem": "What is $1+1$?", "solution": "$\\boxed{2}$", "answer": "2", "subject": "Algebra", "level": 1}
DATA = {
    "openai/gsm8k": {
        "README.md": card("main", train="main/train.jsonl", test="main/test.jsonl"),
        "main/train.jsonl": rows(*map(gsm, range(2, 12))),
        "main/test.jsonl": rows(*map(gsm, range(20, 26))),
    },
    "zwhe99/DeepMath-103K": {
        "README.md": card(None, train="data/train-0.jsonl"),
        "data/train-0.jsonl": rows(deep(3, 1.0), deep(4, 5.0), deep(5, 6.5), deep(6, 9.0)),
    },
    "HuggingFaceH4/MATH-500": {"README.md": b"MATH-500", "test.jsonl": rows(MATH)},
    "google-research-datasets/mbpp": {
        "README.md": card("full", train="full/train.jsonl", test="full/test.jsonl"),
        "full/train.jsonl": rows(MBPP),
        "full/test.jsonl": rows(MBPP),
    },
    "openai/openai_humaneval": {
        "README.md": card("openai_humaneval", test="openai_humaneval/test.jsonl"),
        "openai_humaneval/test.jsonl": rows(EVAL),
    },
    "allenai/ai2_arc": {
        "README.md": card("ARC-Challenge", train="ARC-Challenge/train.jsonl", test="ARC-Challenge/test.jsonl"),
        "ARC-Challenge/train.jsonl": rows(*map(arc, range(4))),
        "ARC-Challenge/test.jsonl": rows(*map(arc, range(5, 7))),
    },
    "nvidia/Nemotron-RL-agent-workplace_assistant": {
        "README.md": b"Workplace",
        "train.jsonl": rows(*map(workplace, range(3))),
        "validation.jsonl": rows(workplace(4)),
    },
    "open-r1/Mixture-of-Thoughts": {
        "README.md": card("math", train="math/train.jsonl"),
        "math/train.jsonl": rows(*(chat(number, 20) for number in range(3, 9)), chat(9, 30000)),
    },
    "HuggingFaceH4/ultrafeedback_binarized": {
        "README.md": card(None, train_prefs="data/train_prefs.jsonl", test_prefs="data/test_prefs.jsonl"),
        "data/train_prefs.jsonl": rows(*map(preferred, range(2, 8))),
        "data/test_prefs.jsonl": rows(preferred(9)),
    },
}
"""The published data sets, except for most of their rows and the format of their files."""


def qwen3(folder: Path, *, experts: bool = False) -> Path:
    """A tiny model with the template of Qwen 3, whose small models are tied."""
    tokenizer = tokenizer_of("qwen3")
    few = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = _shape(tokenizer)
    model: PreTrainedModel = (
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **few, tie_word_embeddings=False))
        if experts
        else Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
    )
    return _saved(model, tokenizer, folder)


def llama(folder: Path) -> Path:
    """A tiny model with the template of Llama 3.2, whose small models are tied."""
    tokenizer = tokenizer_of("llama3_2")
    return _saved(LlamaForCausalLM(LlamaConfig(**_shape(tokenizer), tie_word_embeddings=True)), tokenizer, folder)


def nemotron(folder: Path, *, template: str, experts: bool = False) -> Path:
    """A tiny hybrid with the template of its family, with or without expert layers."""
    tokenizer = tokenizer_of(template)
    hybrid = replace(tiny_models.EXPERTS if experts else tiny_models.SMALL, max_positions=32768)
    config = hybrid_config(hybrid, tokenizer)
    return _saved(NemotronHForCausalLM(config), tokenizer, folder)


def _shape(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return tiny_models.DENSE | ids | {"vocab_size": padded_size(tokenizer), "max_position_embeddings": 32768}


def _saved(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def stand_ins(folder: Path, *, sampled: bool = False) -> dict[str, dict[str, bytes]]:
    """The content of the test's hub. `sampled` takes no experts for Nemotron 3, which vLLM's CPU build can't run.

    A recipe's teacher has different weights: a model learns nothing from itself.
    """
    dense = qwen3(folder / "dense")
    models = {
        "Qwen/Qwen3-0.6B": dense,
        "Qwen/Qwen3-1.7B": dense,
        "Qwen/Qwen3-4B": dense,
        "Qwen/Qwen3-8B": qwen3(folder / "teacher"),
        "Qwen/Qwen3-30B-A3B": qwen3(folder / "experts", experts=True),
        "meta-llama/Llama-3.2-1B-Instruct": llama(folder / "llama"),
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2": nemotron(folder / "hybrid", template="nemotron_nano_v2"),
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": nemotron(
            folder / "three", template="nemotron_3_nano", experts=not sampled
        ),
    }
    files = {f"models/{name}": {one.name: one.read_bytes() for one in at.iterdir()} for name, at in models.items()}
    return files | {f"datasets/{name}": dict(repo) for name, repo in DATA.items()}


def call(home: Path, endpoint: str, *arguments: str, timeout: float) -> str:
    """Return the output of Python in a separate process, since the hub's library reads its environment once."""
    variables = os.environ | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    variables.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
