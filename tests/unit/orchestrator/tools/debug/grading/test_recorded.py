"""Verifiers score recorded answers again, with tasks rebuilt from configuration and event log."""

import json
from pathlib import Path
from typing import Any

import pytest

from temper.envs.core.task import Task
from temper.envs.source import open_source
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir, RunState
from temper.rewards.score import Score
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion
from temper.rollout.trajectory_json import write_groups


def answer(task: Task, text: str, reward: float, **parts: float) -> Trajectory:
    turn = Turn(
        context_ids=as_ids([1]), sampled_ids=as_ids([2]), logprobs_T=as_floats([-1.0]), versions_T=as_ids([1]),
        injected_T=as_marks([False]), text=text,
    )  # fmt: skip
    score = Score(parts={"correct": reward} | parts)
    return Trajectory(task=task, turns=(turn,), stop=Stop.ENV, reward=reward + sum(parts.values()), score=score)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run with an evaluation and a step of two sums. The second group's reward differs from its verifier's score."""
    run = RunDir(tmp_path_factory.mktemp("runs") / "sums")
    run.trajectories.mkdir(parents=True)
    run.config.write_text("name: sums\nseed: 5\nstages: [init, rl, eval]\nenvs: {math: {}}\n", encoding="utf-8")
    model = run.root / "model"
    model.mkdir()
    byte_tokenizer().save_pretrained(model)
    (model / "config.json").write_text("{}", encoding="utf-8")
    run.store(RunState(model="model"))
    env = load_config(run.config, []).environments["math"]
    train, heldout = (open_source(env, split=split, seed=5) for split in ("train", "heldout"))
    rows = [
        {"stage": "rl", "event": "admitted", "time": 0.0, "ticket": ticket, "env": "math", "index": index, "version": 1}
        for ticket, index in ((40, 3), (41, 9))
    ]
    run.event_log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    first, second = train.task(3), train.task(9)
    groups = [
        group(
            40,
            first,
            [answer(first, right(first), 1.0, thinking_length=0.25), answer(first, "2</think>\n\\boxed{-1}", 0.0)],
        ),
        group(41, second, [answer(second, "2</think>\n\\boxed{-1}", 1.0)]),
    ]
    write_groups(run.trajectory_file("rl", 10), groups)
    asked = [heldout.task(index) for index in range(2)]
    write_groups(
        run.trajectories / "eval-rl.jsonl",
        [group(10**9 + place, task, [answer(task, right(task), 1.0)]) for place, task in enumerate(asked)],
    )
    return run


def right(task: Task) -> str:
    return f"so</think>\n\\boxed{{{task.spec['answer']}}}"


def group(number: int, task: Task, answers: list[Trajectory]) -> Group:
    return Group.of(Ticket(number=number, task=task, admitted=WeightVersion(step=1)), answers)


def regrade(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["env", "regrade", str(path), *arguments])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_verdict_that_is_another_one_now_is_told(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = regrade(capsys, run.trajectory_file("rl", 10))
    assert status == 1
    assert [(one["recorded"], one["reward"], one["agrees"]) for one in told] == [
        (1.0, 1.0, True),
        (0.0, 0.0, True),
        (1.0, 0.0, False),
    ]
    assert "-1" in told[2]["detail"]


def test_single_rows_and_those_of_evaluations_are_repeated(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert regrade(capsys, run.trajectory_file("rl", 10), "--row", "1")[0] == 0
    status, told = regrade(capsys, run.trajectories / "eval-rl.jsonl")
    assert (status, [one["reward"] for one in told]) == (0, [1.0, 1.0])


def test_what_can_not_be_repeated_is_an_error_with_its_reason(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.trajectory_file("rl", 10)
    assert main(["env", "regrade", str(path), "--row", "3"]) == 2
    assert "--row 3: " in capsys.readouterr().err
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("seed: 5", "seed: 6"), encoding="utf-8")
    try:
        assert main(["env", "regrade", str(path), "--row", "0"]) == 2
    finally:
        run.config.write_text(text, encoding="utf-8")
    assert "cannot be rebuilt" in capsys.readouterr().err


def test_episodes_of_an_agent_are_failures(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("math: {}", "math: {agent: json.dumps}"), encoding="utf-8")
    try:
        status, rows = regrade(capsys, run.trajectories / "eval-rl.jsonl")
    finally:
        run.config.write_text(text, encoding="utf-8")
    assert status == 1
    assert [(one["reward"], one["failure"]["type"]) for one in rows] == [(None, "environment")] * 2
