"""The recipes name models and columns on the hub. They load, pass their checks and start with tiny stand-ins."""

import json
import math
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load, load_file
from support.hub_server import served
from support.recipe_hub import ROOT, call, stand_ins
from support.recipe_pages import head_of
from unit.envs.remote.test_nemo_gym import CounterServer

from temper.envs.catalog import environment
from temper.envs.source import content_key
from temper.orchestrator.run.metrics_log import read_metrics, step_rows

RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
CHECK = """
import json, sys
from pathlib import Path
from temper.envs.source import open_source
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.orchestrator.pipeline.start_checks import check_before

found = {}
for path, profile in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    config = load_resolved_config(Path(path), [f"profile={profile}"])
    check_before(config, list(config.instances), Path(sys.argv[1]) / config.name)
    sizes = {
        name: [open_source(env, split=split, seed=1).size for split in ("train", "heldout")]
        for name, env in config.environments.items()
        if env.config.data is not None
    }
    found[Path(path).stem] = sizes
print(json.dumps(found))
"""
SIZES = {
    "one_gpu_small": {"math": [10, 6], "code": [1, 1]},
    "one_gpu": {"math": [10, 6], "code": [1, 1]},
    "eight_gpus": {"math": [2, 1], "code": [1, 1]},
    "two_hosts": {"math": [3, 1], "code": [1, 1]},
    "experts": {"math": [2, 1]},
    "served": {"workplace": [3, 1], "science": [4, 2]},
    "sft": {"math": [10, 6]},
    "dpo": {},
    "distill": {"math": [10, 6]},
}
FEW = ("rollout.limits={turn_tokens: 32, total_tokens: 2048}", "eval.tasks=3", "eval.samples=1")
TWO = {
    **{
        loop: (
            *(f"{loop}.steps=2", f"{loop}.groups_per_step=2", f"{loop}.group_size=2", f"{loop}.eval_every=1"),
            *(f"{loop}.eval_tasks=3", f"{loop}.optim.warmup_steps=0"),
        )
        for loop in ("rl", "distill")
    },
    **{one: (f"{one}.steps=2", f"{one}.batch_size=2", f"{one}.optim.warmup_steps=0") for one in ("sft", "dpo")},
}
"""Settings for two small steps of each stage."""
BRIEF = tuple(f"envs.{{}}.{setting}" for setting in ("length_limit=32", "weights={{correct: 1, length: 0.5}}"))
"""Brevity is rewarded too, so that the rewards of an untrained model's answers differ."""
THINKING = (
    *("rl.thinking={budget: 0.5, budget_range: [4, 8]}", "rollout.thinking={grace: 4, answer_tokens: 16}"),
    "eval.budget_shares=[0.5]",
)
OWN = {
    "one_gpu_small": ("rl", "math", ()),
    "one_gpu": ("rl", "math", ()),
    "eight_gpus": ("rl", "math", THINKING),
    "two_hosts": ("rl", "math", ("learner.train_router=true",)),  # a hybrid without experts has no router
    "experts": ("rl", "math", ()),
    "served": ("rl", "science", ()),
    "sft": ("sft", "math", ()),
    "dpo": ("dpo", "instruction_following", ()),
    "distill": ("distill", "math", ()),
}
"""Of each recipe: the stage that trains, an environment that rewards brevity, and other settings that small models need."""


def profile_of(path: Path) -> str:
    """The profile of the hardware in a recipe's head."""
    found = re.search(r"-(\d+)G$", head_of(path).hardware)
    assert found is not None
    return f"gpu{found[1]}"


def test_every_recipe_starts_from_names(tmp_path: Path) -> None:
    with served(stand_ins(tmp_path / "models")) as hub:
        recipes = [word for path in RECIPES for word in (str(path), profile_of(path))]
        said = call(tmp_path / "home", hub.endpoint, "-c", CHECK, str(tmp_path), *recipes, timeout=300)
    assert json.loads(said.splitlines()[-1]) == SIZES  # whole test sets; filters and columns of what is trained on


def test_tools_of_ones_own_pass_their_self_test() -> None:
    self_test = pytest.importorskip("temper.orchestrator.tools.debug.grading.envcheck").self_test
    env = environment("temper.configs.recipes.stock")
    assert env.generate is not None
    for level in (1, 2):
        tasks = [env.generate(random.Random(index), level) for index in range(20)]
        report = self_test(env, [replace(task, env=env.ref(), key=content_key(task)) for task in tasks])
        assert report.passed, report.findings


TINY = (
    "model.fresh={pattern: M*-, hidden_size: 64, intermediate_size: 128, attention_heads: 2, key_value_heads: 1, "
    "mamba_heads: 4, state_size: 16, max_positions: 2048}"
)
FRESH = {
    "budget_demo": (*TWO["sft"], *TWO["rl"], "eval.budgets=[2]", "rl.thinking.nested_budgets=[2]"),
    "budget_study": (*TWO["sft"], *TWO["rl"], "eval.budgets=[2]", "rl.thinking.nested_budgets=[2]"),
    "questions": (*TWO["sft"], *TWO["rl"]),
    "hybrid_10m": (*TWO["sft"], *TWO["rl"], TINY),
}
"""Settings that make each configuration for a fresh model small. Another test runs the demo."""


@contextmanager
def counting() -> Iterator[str]:
    """The server of the recipe that needs one: it counts."""
    with CounterServer() as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield serving.url
        finally:
            serving.shutdown()
            thread.join()


def two_steps(recipe: str, stage: str, folder: Path, *overrides: str, sampled: bool = True) -> Path:
    """Run a recipe on small models and data. Return the folder of a run that has trained two steps of this stage.

    Both are recorded, their figures are finite, and the weights have changed.
    """
    file, repos = f"configs/recipes/{recipe}.yaml", stand_ins(folder / "models", sampled=sampled)
    with served(repos) as hub:
        command = ("-m", "temper.orchestrator", "run", file, f"runs_dir={folder}/runs", "name=two", *FEW, *TWO[stage])
        call(folder / "home", hub.endpoint, *command, *overrides, timeout=500)
    run = folder / "runs" / "two"
    steps = step_rows(read_metrics(run / "metrics.jsonl"), stage)
    assert [row.step for row in steps] == [1, 2]
    assert all(math.isfinite(row.values["train/loss"]) for row in steps)
    model = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["model"]["path"]
    before = load(repos[f"models/{model}"]["model.safetensors"])
    after = load_file(run / "checkpoints" / stage / "000002" / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], tensor) for name, tensor in after.items())
    return run


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SIZES)
def test_a_recipe_samples_and_takes_two_steps_of_its_stages_on_a_cpu(recipe: str, tmp_path: Path) -> None:
    stage, brief, own = OWN[recipe]
    with counting() as url:
        at = [f"envs.workplace.options.url={url}"] if recipe == "served" else []
        run = two_steps(recipe, stage, tmp_path, *(each.format(brief) for each in BRIEF), *own, *at)
    told = json.loads((run / "eval" / f"{stage}.json").read_text(encoding="utf-8"))
    assert brief in told["envs"]
    assert (run / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", FRESH)
def test_a_configuration_for_a_fresh_model_takes_two_steps_of_its_stages_on_a_cpu(name: str, tmp_path: Path) -> None:
    file = ROOT / "configs" / f"{name}.yaml"
    command = ("-m", "temper.orchestrator", "run", str(file), f"runs_dir={tmp_path}", "name=two", *FEW, *FRESH[name])
    call(tmp_path / "home", "http://127.0.0.1:1", *command, timeout=500)
    rows = read_metrics(tmp_path / "two" / "metrics.jsonl")
    trained = {"sft", "rl"} & set(yaml.safe_load(file.read_text(encoding="utf-8"))["stages"])
    for stage in trained:
        steps = step_rows(rows, stage)
        assert [row.step for row in steps] == [1, 2]
        assert all(math.isfinite(row.values["train/loss"]) for row in steps)
    assert "rl" in trained
    assert (tmp_path / "two" / "report.html").is_file()


@pytest.mark.slow
def test_experts_of_nemotron_take_two_steps_of_sft(tmp_path: Path) -> None:
    given = ("stages=[init, sft]", "sft.data={path: open-r1/Mixture-of-Thoughts, config: math}")
    two_steps("two_hosts", "sft", tmp_path, *given, sampled=False)
