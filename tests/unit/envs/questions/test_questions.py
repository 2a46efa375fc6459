"""All kinds of questions: at every level references and demonstrations earn 1, negatives nothing, and level 1 is small."""

import random
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import temper.envs.questions
from temper.envs.catalog import ENVIRONMENTS, make_env
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.turn_text import turn_text
from temper.envs.source import content_key, split_of

FILES = sorted(Path(temper.envs.questions.__file__).parent.glob("*.py"))
DEFINED = [
    import_module(f"temper.envs.questions.{path.stem}").ENVIRONMENT
    for path in FILES
    if "\nENVIRONMENT =" in path.read_text()
]
KINDS = [env.id for env in DEFINED if env.generate is not None]
LONGEST_PROMPT, LONGEST_ANSWER = 160, 90
"""Characters of a level 1 task that the demo's byte-level model can still learn."""


def levels(env: EnvDefinition) -> range:
    """Return the levels of its generated tasks, from 1."""
    assert env.levels is not None
    return range(1, env.levels + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_passes_the_self_test(kind: str) -> None:
    self_test = pytest.importorskip("temper.orchestrator.tools.debug.grading.envcheck").self_test
    env = ENVIRONMENTS[kind]
    assert env.generate is not None
    for level in levels(env):
        tasks = [env.generate(random.Random(f"{level}/{index}"), level) for index in range(40)]
        bound = [replace(task, env=env.ref(), key=content_key(task)) for task in tasks]
        report = self_test(env, bound)
        assert report.passed, [(level, finding.name, finding.against[:3]) for finding in report.findings]
        assert {split_of(task) for task in bound} == {"train", "heldout"}


@pytest.mark.parametrize("kind", KINDS)
def test_demonstrations_earn_1_and_are_small_on_level_1(kind: str) -> None:
    env = ENVIRONMENTS[kind]
    assert env.generate is not None
    for level in levels(env):
        for index in range(30):
            task = env.generate(random.Random(f"{level}/{index}"), level)
            assert env.demonstrate is not None
            said = [message for message in env.demonstrate(task) if message["role"] == "assistant"]
            played = make_env(env.ref())
            played.reset(options={"task": replace(task, env=env.ref())})
            for message in said:
                _, reward, over, _, _ = played.step(turn_text(message, thinks=True))
            assert (reward, over) == (1.0, True), (level, task.messages, said)
            if level == 1:
                prompt = sum(len(message["content"]) for message in task.messages)
                assert prompt <= LONGEST_PROMPT
                assert max(len(turn_text(message, thinks=True)) for message in said) <= LONGEST_ANSWER
