"""The recipes begin with names on the hub and columns: loaded, checked and begun with tiny stand-ins of models and data."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
from hub_server import served
from model_families import tokenizer_of
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from envs.catalog import environment
from envs.source import content_key
from orchestrator.grading.envcheck import self_test

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
CHECK = """
import json, sys
from pathlib import Path
from envs.source import open_source
from orchestrator.pipeline.config import settled_config
from orchestrator.pipeline.start_checks import check_before

found = {}
for path, profile in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    config = settled_config(Path(path), [f"profile={profile}"])
    check_before(config, list(config.instances), Path(sys.argv[1]) / config.name)
    sizes = {
        name: [open_source(env, split=split, seed=1).size for split in ("train", "heldout")]
        for name, env in config.environments.items()
        if env.config.data is not None
    }
    found[Path(path).stem] = sizes
print(json.dumps(found))
"""


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
    return {"id": number, "responses_create_params": params, "ground_truth": [], "environment_name": "workbench"}


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
}
"""As the data sets are published, but for most of their rows and the format of their files."""
PROFILES = {"one_gpu": "gpu24", "eight_gpus": "gpu80", "experts": "gpu141", "served": "gpu80"}
"""What each recipe is for."""
SIZES = {
    "one_gpu": {"math": [10, 6]},
    "eight_gpus": {"math": [2, 1], "code": [1, 1]},
    "experts": {"math": [2, 1]},
    "served": {"workplace": [3, 1], "science": [4, 2]},
}


def qwen3(folder: Path, *, experts: bool = False) -> Path:
    """A tiny model with the template of Qwen 3, whose small models are tied."""
    tokenizer = tokenizer_of("qwen3")
    shape = tiny_models.DENSE | {"vocab_size": len(tokenizer), "max_position_embeddings": 32768}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    few = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model: PreTrainedModel = (
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **ids, **few, tie_word_embeddings=False))
        if experts
        else Qwen3ForCausalLM(Qwen3Config(**shape, **ids, tie_word_embeddings=True))
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def nemotron(folder: Path) -> Path:
    """A tiny hybrid with a template as that of Nemotron Nano 9B v2."""
    tiny_models.nemotron_h(folder)
    tokenizer_of("nemotron_nano_v2").save_pretrained(folder)
    return folder


def stand_ins(folder: Path) -> dict[str, dict[str, bytes]]:
    """What the hub of the test has."""
    dense = qwen3(folder / "dense")
    models = {
        "Qwen/Qwen3-1.7B": dense,
        "Qwen/Qwen3-4B": dense,
        "Qwen/Qwen3-30B-A3B": qwen3(folder / "experts", experts=True),
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2": nemotron(folder / "hybrid"),
    }
    files = {f"models/{name}": {one.name: one.read_bytes() for one in at.iterdir()} for name, at in models.items()}
    return files | {f"datasets/{name}": dict(repo) for name, repo in DATA.items()}


def call(home: Path, endpoint: str, *arguments: str, timeout: float) -> str:
    """What Python prints in a process of its own, since the hub's library reads its environment once."""
    variables = os.environ | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    variables.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_every_recipe_starts_from_names_and_says_where_it_ran(tmp_path: Path) -> None:
    with served(stand_ins(tmp_path / "models")) as hub:
        recipes = [word for path in RECIPES for word in (str(path), PROFILES[path.stem])]
        said = call(tmp_path / "home", hub.endpoint, "-c", CHECK, str(tmp_path), *recipes, timeout=300)
    assert json.loads(said.splitlines()[-1]) == SIZES  # whole test sets; filters and columns of what is trained on
    for path in RECIPES:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 40
        assert "# Planned: not run on this hardware yet" in "\n".join(lines[:5])


def test_tools_of_ones_own_pass_their_self_test() -> None:
    env = environment("configs.recipes.stock")
    assert env.generate is not None
    for level in (1, 2):
        tasks = [env.generate(random.Random(index), level) for index in range(20)]
        report = self_test(env, [replace(task, env=env.ref(), key=content_key(task)) for task in tasks])
        assert report.passed, report.findings


@pytest.mark.slow
def test_the_recipe_for_one_gpu_takes_two_steps_on_a_cpu_by_the_profile_of_a_cpu(
    tmp_path: Path,
) -> None:
    smaller = [
        "rollout.limits={turn_tokens: 32, total_tokens: 2048}",
        *("rl.steps=2", "rl.groups_per_step=2", "rl.group_size=2", "rl.max_drops=1", "rl.eval_every=1"),
        *("rl.eval_tasks=3", "rl.optim.warmup_steps=1", "eval.tasks=6", f"runs_dir={tmp_path}/runs"),
    ]
    with served(stand_ins(tmp_path / "models")) as hub:
        run = ("-m", "orchestrator", "run", "configs/recipes/one_gpu.yaml", *smaller)
        call(tmp_path / "home", hub.endpoint, *run, timeout=500)
    folder = tmp_path / "runs" / "one-gpu"
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = sorted((row["stage"], row["step"]) for row in map(json.loads, lines) if row["stage"].startswith("rl"))
    assert steps == [("rl", 1), ("rl", 2), ("rl.eval", 0), ("rl.eval", 1), ("rl.eval", 2)]
    assert {"math", "stock"} <= json.loads((folder / "eval" / "rl.json").read_text())["envs"].keys()
