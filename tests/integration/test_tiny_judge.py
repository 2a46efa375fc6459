"""Runs train on the judgement of a real model: a tiny one that learned to see whether an answer is a question."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from support.chat_server import Body, ChatServerDouble, told
from support.fault_job import Runs, rows, runs
from support.json_lines import write_lines

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.judge_config import JudgeConfig
from temper.envs.data.config import DataConfig
from temper.envs.judge import compare_answers, judge_answer
from temper.envs.source import open_source
from temper.orchestrator.run.folder import RunDir

THINGS = ("salt", "bread", "water", "book", "key", "map", "pen", "cup", "lamp", "door", "chair", "coat", "soup", "milk")
RUBRIC = "It is a question."
JUDGEMENTS = 2400
"""Of each form: scores, and comparisons."""
MODEL = {"pattern": "M*-M*-", "hidden_size": 128, "intermediate_size": 384, "attention_heads": 4, "key_value_heads": 2}
OPTIMISER = {"kind": "muon", "muon_learning_rate": 0.012, "learning_rate": 2.0e-3, "warmup_steps": 10, "beta2": 0.98}
CONFIG: dict[str, Any] = {
    "seed": 1,
    "model": {"fresh": MODEL},
    "sft": {"optim": {**OPTIMISER, "schedule": "cosine", "final_fraction": 0.1}},
    "rl": {
        "steps": 12,
        "groups_per_step": 8,
        "group_size": 8,
        "max_replaced_groups": 0,
        "optim": {"learning_rate": 3.0e-4, "warmup_steps": 2, "beta2": 0.99},
    },
    "rollout": {"limits": {"turn_tokens": 48, "total_tokens": 128}},
}


def answer(rng: random.Random, thing: str, *, questions: float) -> str:
    """Return an answer that is a question with probability `questions`."""
    verb, whose, end = rng.choice(("pass", "give", "bring", "hand")), rng.choice(("me", "us")), rng.choice((".", "!"))
    return f"{verb} {whose} the {thing}{'?' if rng.random() < questions else end}"


def is_question(text: str, row: dict[str, str]) -> float:
    """Return 1 for a question. The run measures this reward but does not train on it."""
    return float(text.endswith("?"))


def judgement(body: Body) -> dict[str, str]:
    """Return a perfect judge's reply to a request, with its reasoning."""
    asks = ["?" in one for one in body["messages"][1]["content"].split("<answer")[1:]]
    better = "equal" if asks[0] == asks[-1] else "AB"[asks[-1]]
    verdict = {"score": int(asks[0])} if len(asks) == 1 else {"better": better}
    return {
        "content": json.dumps({"reasoning": "", **verdict}),
        "reasoning_content": " ".join("yes" if one else "no" for one in asks),
    }


def perfect_judgements(prompts: Path) -> list[list[dict[str, str]]]:
    """Return chats with a perfect judge."""
    rng, chats = random.Random(1), []
    with ChatServerDouble(lambda body: told(**judgement(body))) as server:
        for compare in (False, True):
            judge = JudgeConfig(url=server.url, model="judge", rubric=RUBRIC, best=1, compare=compare)
            source = open_source(
                bind("rows", EnvConfig(judge=judge, data=DataConfig(path=str(prompts)))), split="train", seed=1
            )
            for index in range(JUDGEMENTS):
                task = source.task(index)
                thing = str(task.request[-1]["content"]).removesuffix(".").split()[-1]
                answers = [answer(rng, thing, questions=0.5) for _ in range(2)]
                compare_answers(judge, task, answers) if compare else judge_answer(judge, task, answers[0])
        for body in server.bodies:
            chats.append([*body["messages"], {"role": "assistant", **judgement(body)}])
    return chats


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Runs in a folder, with rows to ask, a trained judge, and a model that asks in a fifth of its answers."""

    runs: Runs
    rows: Path
    judge: Path
    model: Path

    def question_shares(self, name: str, **judge: Any) -> list[float]:
        """Return the share of questions in each step of a run that only the judge rewards."""
        judge |= {"model": str(self.judge), "rubric": RUBRIC, "max_tokens": 64}
        env = {
            "data": str(self.rows),
            "thinking": False,
            "reward": f"{__name__}.is_question",
            "weights": {"judge": 1.0, "reward": 0.0},
            "judge": judge,
        }
        run = trained(self.runs, name, stages=["init", "rl"], envs={"rows": env}, model={"path": str(self.model)})
        return [row.values["env/rows/parts/reward"] for row in rows(run, "rl")]


def trained(runs: Runs, name: str, **settings: Any) -> Path:
    runs.config.write_text(yaml.safe_dump(CONFIG | settings), encoding="utf-8")
    job = runs.start(name)
    assert job.end() == 0, job.output
    return job.run


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    rng = random.Random(2)
    with runs() as made:
        chats, prompts, judgements = (made.folder / f"{name}.jsonl" for name in ("chats", "prompts", "judgements"))
        asked = [{"role": "user", "content": f"Ask for the {thing}."} for thing in THINGS]
        write_lines(prompts, [{"messages": [one]} for one in asked])
        write_lines(
            chats,
            [
                {"messages": [one, told(answer(rng, thing, questions=0.2))["message"]]}
                for thing, one in zip(THINGS, asked, strict=True)
                for _ in range(100)
            ],
        )
        write_lines(judgements, [{"messages": chat} for chat in perfect_judgements(prompts)])
        judge, model = (
            trained(
                made,
                name,
                stages=["init", "sft"],
                envs={},
                sft=CONFIG["sft"] | {"data": str(data), "steps": steps, "batch_size": 32},
            )
            for name, data, steps in (("judge", judgements, 250), ("model", chats, 60))
        )
        yield Setup(runs=made, rows=prompts, judge=RunDir(judge).newest_model(), model=RunDir(model).newest_model())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rl_raises_what_a_judge_scores(setup: Setup) -> None:
    shares = setup.question_shares("scored", best=1)
    assert fmean(shares[-3:]) > fmean(shares[:3]) + 0.3, shares


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rl_raises_what_a_judge_prefers(setup: Setup) -> None:
    shares = setup.question_shares("compared", compare=True)
    assert fmean(shares[-3:]) > fmean(shares[:3]) + 0.3, shares
