"""Rows, a reward and a tool train, are evaluated and served from Python, inside a running event loop, on real engines."""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest
from support import tiny_models, user_functions
from transformers import AutoModelForCausalLM

import temper

ROWS = [{"question": f"{number}+1?", "answer": str(number + 1)} for number in range(64)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_is_trained_evaluated_and_served_from_python(tmp_path: Path) -> None:
    model = tiny_models.qwen3(tmp_path / "model")

    async def work() -> tuple[temper.TrainedRun, dict[str, float]]:
        run = temper.train(
            model,
            ROWS,
            user_functions.parts,
            tools=[user_functions.population],
            runs_dir=str(tmp_path),
            stages=["init", "rl", "report"],
            rl={"steps": 2, "groups_per_step": 2, "group_size": 2, "optim": {"warmup_steps": 0}},
            rollout={"limits": {"turn_tokens": 24, "total_tokens": 1024}},
            tracking={"system_s": 0},
        )
        scores = await asyncio.to_thread(temper.evaluate, run, ROWS[:4], runs_dir=str(tmp_path), eval={"samples": 1})
        return run, scores["envs"]["rows"]

    run, scores = asyncio.run(work())
    steps = run.metrics.query("stage == 'rl'")
    assert steps["step"].tolist() == [1, 2]
    assert steps["env/rows/reward"].between(0.5, 1.5).all()
    assert scores["parts/short"] == 0.5
    assert scores["tasks"] == 4
    assert AutoModelForCausalLM.from_pretrained(run.model).config.model_type == "qwen3"
    assert "iframe" in run._repr_html_()
    with (
        temper.serve(run, max_model_len=256) as server,
        urllib.request.urlopen(f"{server.url}/models", timeout=30) as answer,
    ):
        assert json.load(answer)["data"]
    assert server.process.returncode is not None
