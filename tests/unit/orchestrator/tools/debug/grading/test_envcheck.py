"""`temper env check`: sound environments pass, unsound ones exit with status 1 and a named check."""

import importlib.util
import json
from pathlib import Path

import pytest
from support.tiny_shop import write_shop

from temper.envs.all_tasks import generate_tasks
from temper.envs.catalog import environment
from temper.orchestrator.__main__ import main
from temper.orchestrator.tools.debug.grading.envcheck import self_test

NEEDS_PUZZLES = pytest.param(
    "reasoning_gym",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
    ),
)

SOUND = """
from temper.envs.core.definition import EnvDefinition
from temper.envs.task_env import TaskEnv
from temper.envs.core.task import Task
from temper.rewards.score import binary_score

class Double(TaskEnv):
    env_id = "{name}"

    def draw(self, rng):
        return generate(rng, 1)

    def turn(self, task, parsed):
        answer = parsed.answer
        return self.end(binary_score(answer.strip() == task.spec["answer"]))

def generate(rng, level):
    n = rng.randint(0, 999)
    message = {{"role": "user", "content": f"2*{{n}}=?"}}
    return Task(messages=(message,), spec={{"answer": str(2 * n)}})

def reference(task):
    return [task.spec["answer"]]

def negatives(task):
    yield "neighbour", [task.spec["answer"] + "1"]
    yield "empty", [""]

ENVIRONMENT = EnvDefinition(
    id="{name}", entry_point="{name}:Double", generate=generate, reference=reference, negatives=negatives
)
"""
FAULTS = {
    "accepts_all": ('answer.strip() == task.spec["answer"]', "True", "wrong answers rejected (neighbour, empty)"),
    "rejects_all": ('answer.strip() == task.spec["answer"]', "False", "reference answers accepted"),
    "raises": ('answer.strip() == task.spec["answer"]', "1 / 0", "ZeroDivisionError"),
    "dices": ("return self.end(", "return self.end(__import__('random').random() < 0.5 and ", "the same score twice"),
    "drifts": ("rng.randint(0, 999)", "__import__('random').randint(0, 10**9)", "the same tasks from the same"),
    "no_space": ("env_id =", "observation_space = property(lambda env: 3, lambda *_: None)\n    env_id =", "check_env"),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_a_sound_environment_passes(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (module / "sound_env.py").write_text(SOUND.format(name="sound_env"))
    assert main(["env", "check", "--env", "sound_env", "--limit", "20"]) == 0
    shown = capsys.readouterr().out
    assert "passed" in shown
    assert "neighbour, empty" in shown
    assert "median" in shown


def test_the_seconds_leave_out_the_start_of_what_the_first_score_waits_for(module: Path) -> None:
    source = SOUND.format(name="slow_start_env").replace("answer = parsed", "started()\n        answer = parsed")
    slow = "\nfrom functools import cache\nfrom time import sleep\n\n@cache\ndef started():\n    sleep(1)\n"
    (module / "slow_start_env.py").write_text(source + slow)
    env = environment("slow_start_env")
    report = self_test(env, generate_tasks(env, 12, seed=0))
    assert report.passed
    assert max(report.seconds) < 0.5


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unsound_environment_fails_by_name(module: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    right, wrong, shown = FAULTS[fault]
    source = SOUND.format(name=f"{fault}_env")
    assert right in source
    (module / f"{fault}_env.py").write_text(source.replace(right, wrong))
    assert main(["env", "check", "--env", f"{fault}_env", "--limit", "20"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert shown in output


SMALL = [f"temper.configs.recipes.smollm2.{name}" for name in ("sums", "sentences", "counts", "timers", "calls")]


@pytest.mark.parametrize("env_id", ["math", "code", "tool_use", "gym", *SMALL, NEEDS_PUZZLES])
def test_the_generated_tasks_of_an_environment_pass(env_id: str) -> None:
    assert main(["env", "check", "--env", env_id, "--limit", "20"]) == 0


def test_a_shop_passes(tmp_path: Path) -> None:
    cancel = {"name": "cancel_pending_order", "kwargs": {"order_id": "#W4", "reason": "no longer needed"}}
    row = {"user_id": "bob_ray_2", "instruction": "Cancel #W4.", "actions": [cancel], "outputs": ["10.1"]}
    data = write_shop(tmp_path) / "tasks.jsonl"
    data.write_text(json.dumps(row))
    assert main(["env", "check", "--env", "retail", "--data", str(data)]) == 0


def test_no_task_and_no_reference_answers_are_refused(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", "--env", "math", "--limit", "0"]) == 2
    assert "--limit=0" in capsys.readouterr().err
    (module / "bare_env.py").write_text(
        SOUND.format(name="bare_env").replace("reference=reference, negatives=negatives", "")
    )
    assert main(["env", "check", "--env", "bare_env"]) == 2
    assert "bare_env" in capsys.readouterr().err


REWARDS = {
    "exact": ('answer.strip() == row["reference"]', 0),
    "an empty answer": ('not answer or answer.strip() == row["reference"]', 1),
    "any short answer": ("len(answer) < 9", 1),
    "an answer among others": ('row["reference"] in answer', 1),
    "its beginning": ('answer.startswith(row["reference"])', 1),
    "the question": ('answer == row["question"] or answer == row["reference"]', 1),
    "an error": ("float(answer) == 1", 1),
}


@pytest.mark.parametrize("fault", REWARDS)
def test_a_reward_that_pays_without_knowledge_fails(module: Path, fault: str) -> None:
    source, status = REWARDS[fault]
    reward = ["--reward", _reward(module, source), "--data", str(_rows(module, reference="reference"))]
    assert main(["env", "check", *reward]) == status


def test_half_of_the_audit_needs_no_reference_answers(module: Path) -> None:
    data = str(_rows(module, reference="solution"))
    for pays, status in (('answer == row["solution"]', 0), ('row["solution"] in answer', 1), ("not answer", 1)):
        assert main(["env", "check", "--reward", _reward(module, pays), "--data", data]) == status
    startswith = _reward(module, 'answer.startswith(row["solution"]) and len(answer) < 9')
    check = ["env", "check", "--reward", startswith, "--data", data]
    assert main(check) == 0
    assert main([*check, "--answer", "solution"]) == 1
    assert main([*check, "--answer", "solutoin"]) == 2


def test_the_rewards_of_a_runs_file_are_checked(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its environments without reference answers are named."""
    mine, run = _reward(module, 'row["reference"] in answer'), module / "run.yaml"
    lake = "lake: {kind: gym, options: {id: FrozenLake-v1}}"
    data = _rows(module, reference="reference")
    run.write_text(f"name: x\nenvs: {{cities: {{data: {data}, reward: '{mine}'}}, {lake}, math: {{}}}}\n")
    assert main(["env", "check", str(run), "--limit", "20", "--env", "math"]) == 0
    capsys.readouterr()
    assert main(["env", "check", str(run), "--limit", "20"]) == 1
    assert "lake" in capsys.readouterr().out
    assert main(["env", "check", str(run), "--env", "maths"]) == 2
    assert main(["env", "check", str(run), "--data", str(data)]) == 2


def _reward(folder: Path, pays: str) -> str:
    """Write a reward function and return its name."""
    file = folder / f"reward_{abs(hash(pays))}.py"
    file.write_text(f"def right(answer, row):\n    return float({pays})\n")
    return f"{file}:right"


def _rows(folder: Path, *, reference: str) -> Path:
    file = folder / "rows.jsonl"
    rows = ({"question": f"Case {n}?", reference: str(2017 + 50 * n)} for n in range(24))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
