"""An environment that scores each answer by its length, so that an untrained model's rewards differ, or fails as configured.

`options: {how: ..., pace: ...}`: `how` is the behaviour in `step`, either `judges` or a kind of failure.
`pace` is a file with the seconds that a step takes. A test may change it during the run, also for steps under way.
"""

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score

WAYS = ("judges", "raises", "hangs", "rubbish", "exits")
HANGS_S = 3600.0


def generate(rng: random.Random, level: int) -> Task:
    word = "".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 3 + level))
    question = {"role": "user", "content": f"Say something about {word}"}
    return Task(messages=(question,), spec={"answer": word})


def demonstrate(task: Task) -> list[Message]:
    return [{"role": "assistant", "reasoning_content": task.spec["answer"], "content": task.spec["answer"]}]


class FaultyEnv(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        if (pace := task.env.options["pace"]) is not None:
            began = time.monotonic()
            while time.monotonic() < began + float(
                Path(pace).read_text(encoding="ascii") or 0
            ):  # empty while it is written
                time.sleep(0.05)
        match task.env.options["how"]:
            case "raises":
                raise RuntimeError("the environment's own mistake")
            case "hangs":
                time.sleep(HANGS_S)
            case "rubbish":
                return self.end(replace(binary_score(True), evidence={"who": cast(Any, self)}))
            case "exits":
                sys.exit(3)
        return self.end(binary_score(len(parsed.answer) % 2 == 0))


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    given = {"how": "judges", "pace": None} | dict(options)
    if given["how"] not in WAYS:
        raise ValueError(f"how={given['how']!r} must be one of {', '.join(WAYS)}")
    return replace(ENVIRONMENT, options=given)


ENVIRONMENT = EnvDefinition(
    id="faulty_env",
    entry_point="support.faulty_env:FaultyEnv",
    generate=generate,
    demonstrate=demonstrate,
    reference=lambda task: [task.spec["answer"]],
    configure=configure,
    options={"how": "judges", "pace": None},
)
