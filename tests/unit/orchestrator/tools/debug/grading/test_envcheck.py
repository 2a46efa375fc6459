"""`temper env check`: sound environments pass, unsound ones exit with status 1 and a named check."""

import importlib.util
import json
from pathlib import Path

import pytest
from support.tiny_shop import write_shop

from temper.envs.all_tasks import generated_tasks
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
    report = self_test(env, generated_tasks(env, 12, seed=0))
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


SMALL = [f"temper.configs.recipes.smollm2.{name}" for name in ("sums", "sentences", "counts", "timers")]


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
