"""Custom environments: their results and errors are validated, and cost at most their own episode."""

import asyncio
import json
import random
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.in_loop import in_loop
from support.scripted_engine import RENDERER, ROOM, ScriptedEngine, play, runner_of

from temper.envs.binding import BoundEnv
from temper.envs.config import EnvConfig
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.errors import EnvError, FailureKind, SandboxError, failure_of
from temper.envs.core.task import EnvRef, Task
from temper.envs.source import GeneratedSource
from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import samples_from_groups
from temper.orchestrator.loop.buffer import Dropped, Occupancy
from temper.orchestrator.loop.step import StepPart, StepReport, StepTimes
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.rollout.codec import from_json, to_json
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.trajectory import Group, Stop, Ticket, WeightVersion
from temper.rollout.trajectory_json import group_lines

TASK = Task(env=EnvRef(name="own"), key="1", messages=({"role": "user", "content": "2+2=?"},), spec={})
Returned = Any


class Own(gymnasium.Env[str, str]):
    """Runs the given callables in `reset` and `step`."""

    def __init__(self, step: Callable[[], Returned], reset: Callable[[], dict[str, Any]] = dict) -> None:
        self._step, self._reset = step, reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "", self._reset()

    def step(self, action: str) -> Returned:
        return self._step()


def raising(error: BaseException) -> Callable[[], Returned]:
    def step() -> Returned:
        raise error

    return step


def answering(reward: Any = 1.0, **info: Any) -> Callable[[], Returned]:
    return lambda: ("", reward, True, False, info)


class Down(EnvError):
    kind = "service"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_numbers_of_numpy_become_plain_numbers() -> None:
    returned = answering(
        np.float32(0.5), parts={"correct": np.float32(1), "moves": np.int64(3)}, evidence={"seed": np.int64(7)}
    )
    scored = play(TASK, ["x"], make=lambda _: Own(returned))
    assert (scored.reward, scored.score.parts, scored.score.evidence) == (
        0.5,
        {"correct": 1.0, "moves": 3.0},
        {"seed": 7},
    )
    assert [type(value) for value in scored.score.parts.values()] == [float, float]
    ticket = Ticket(number=0, task=TASK, admitted=WeightVersion(step=0))
    (line,) = group_lines(Group(ticket=ticket, trajectories=(scored,)))
    assert json.loads(line)["parts"] == {"correct": 1.0, "moves": 3.0}


@pytest.mark.parametrize(
    ("step", "kind", "message"),
    [
        (answering(parts={"style": "good"}), FailureKind.GRADER, "the part 'style' of the reward of own/1 is 'good'"),
        (answering(parts={"style": np.nan}), FailureKind.GRADER, "the part 'style' of the reward of own/1 is nan"),
        (answering(parts=[1.0]), FailureKind.ENVIRONMENT, "the parts of the reward are [1.0], not a mapping"),
        (answering("1"), FailureKind.GRADER, "the reward of own/1 is '1', not a finite number"),
        (answering(np.zeros(2)), FailureKind.GRADER, "not a finite number"),
        (answering(np.nan), FailureKind.GRADER, "not a finite number"),
        (answering(evidence={"who": object()}), FailureKind.ENVIRONMENT, "the evidence of own/1 are no JSON data"),
        (answering(messages=[{"content": "?"}]), FailureKind.ENVIRONMENT, "it needs a role"),
        (answering(messages=[{"role": "tool", "content": {1, 2}}]), FailureKind.ENVIRONMENT, "are no JSON data"),
        (answering(outcome="great"), FailureKind.ENVIRONMENT, "'great' is not a valid Outcome"),
        (lambda: 1.0, FailureKind.ENVIRONMENT, "(observation, reward, terminated, truncated, info)"),
        (raising(KeyError("a bug in the reward")), FailureKind.ENVIRONMENT, "a bug in the reward"),
        (raising(SandboxError("zygote died")), FailureKind.SANDBOX, "zygote died"),
        (raising(SystemExit(3)), FailureKind.ENVIRONMENT, "SystemExit: 3"),
        (raising(KeyboardInterrupt()), FailureKind.ENVIRONMENT, "KeyboardInterrupt"),
        (raising(StopIteration()), FailureKind.ENVIRONMENT, "StopIteration"),
        (raising(CancelledError()), FailureKind.ENVIRONMENT, "CancelledError"),
        (raising(asyncio.CancelledError()), FailureKind.ENVIRONMENT, "CancelledError"),
        (raising(TimeoutError("its own")), FailureKind.ENVIRONMENT, "TimeoutError: its own"),
        (raising(Down("no route")), FailureKind.ENVIRONMENT, "Down: no route"),
        (raising(Mute()), FailureKind.ENVIRONMENT, "Mute: its message can't be read"),
    ],
)
def test_a_wrong_return_or_an_error_fails_its_episode(
    step: Callable[[], Returned], kind: FailureKind, message: str
) -> None:
    failed = play(TASK, ["x"], make=lambda _: Own(step))
    assert failed.failure is not None
    assert (failed.reward, failed.stop, failed.failure.kind) == (None, Stop.FAILURE, kind)
    assert message in failed.failure.message


@in_loop
async def test_an_environments_error_fails_no_other_episode() -> None:
    envs = iter([Own(raising(SystemExit())), Own(answering()), Own(answering(), reset=raising(SystemExit(1)))])
    runner = runner_of(ScriptedEngine(["x"]), make=lambda _: next(envs))
    played = await asyncio.gather(*(runner.run(TASK, seed=seed) for seed in range(3)))
    rewards = [one.reward for one in played]  # threads make the environments, in any order
    assert sorted(rewards, key=str) == [1.0, None, None]


def test_a_kind_of_failure_that_nobody_knows_is_the_environments() -> None:
    assert failure_of(Down("x")).kind is FailureKind.ENVIRONMENT


def test_a_prompt_that_fills_the_episode_is_a_failure() -> None:
    tokens = len(RENDERER.prompt_ids(TASK))
    own = lambda _: Own(answering())  # noqa: E731
    failed = play(TASK, ["x"], limits=replace(ROOM, total_tokens=tokens), make=own)
    assert failed.failure is not None
    assert (failed.reward, failed.stop, failed.turns) == (None, Stop.PROMPT_TOO_LONG, ())
    assert failed.failure.kind is FailureKind.PROMPT_TOO_LONG
    assert f"rollout.limits.total_tokens={tokens}" in failed.failure.message
    assert play(TASK, ["x"], limits=replace(ROOM, total_tokens=tokens + 1), make=own).failure is None


def report(groups: list[Group]) -> StepReport:
    return StepReport(
        step=1,
        groups=groups,
        dropped=Dropped(),
        learner={},
        version=WeightVersion(step=0),
        left_over=0,
        pushed_bytes=1,
        pushed_share=1.0,
        load_s=0.0,
        times=StepTimes(seconds={StepPart.WAIT: 3.0}),
        occupancy=Occupancy(slots=1, held={}),
        engine=EngineStats(),
    )


def test_a_batch_leaves_out_prompts_that_are_too_long() -> None:
    shown = iter([{}, {"messages": [{"role": "user", "content": "long " * 200}]}, {}])
    limits = replace(ROOM, total_tokens=len(RENDERER.prompt_ids(TASK)) + 50)
    envs = (Own(answering(reward), reset=lambda: next(shown)) for reward in (1.0, 0.5, 0.0))
    answers = [play(TASK, ["x"], limits=limits, make=lambda _: next(envs)) for _ in range(3)]
    group = Group(
        ticket=Ticket(number=0, task=TASK, admitted=WeightVersion(step=0)),
        trajectories=tuple(one for one in answers if one.failure is None),
        failed=tuple(one for one in answers if one.failure is not None),
    )
    assert (group.rewards_G, [one.stop for one in group.failed]) == ([1.0, 0.0], [Stop.PROMPT_TOO_LONG])
    lost = replace(group, trajectories=(), failed=group.failed * 2)
    assert step_metrics(report([group, lost]))["env/own/failures/prompt_too_long"] == 3.0
    sequences = samples_from_groups([group, lost], advantage="dr_grpo")
    assert build_batch(sequences, ranks=1, micro_batch_tokens=512, pad_id=0).samples == 2


class Generator:
    """Makes tasks, or calls `instead`."""

    instead: Callable[[], object] | None = None

    def __call__(self, rng: random.Random, level: int) -> Task:
        answer = 4 if self.instead is None else self.instead()
        return Task(messages=({"role": "user", "content": str(rng.random())},), spec={"answer": answer})


@pytest.mark.parametrize("instead", [raising(SystemExit("no more")), raising(KeyError("x")), lambda: np.float32(4)])
def test_a_task_that_can_not_be_made_fails_its_episodes(instead: Callable[[], object]) -> None:
    generate = Generator()
    definition = EnvDefinition(id="own", entry_point="own:Own", generate=generate)
    source = GeneratedSource(BoundEnv(name="own", config=EnvConfig(), definition=definition), split="train", seed=1)
    generate.instead = instead
    failed = play(source.task(7), ["x"], make=lambda _: Own(answering()))
    assert failed.failure is not None
    assert (failed.failure.kind, failed.reward) == (FailureKind.ENVIRONMENT, None)
    assert "task 7 can't be made" in failed.failure.message
    generate.instead = None
    assert play(source.task(7), ["x"], make=lambda _: Own(answering())).reward == 1.0


def test_a_number_as_the_key_of_a_task_is_its_text() -> None:
    """Else the files of a checkpoint with answers to the task could not be read."""
    key: Any = 7
    made = Task(messages=({"role": "user", "content": "?"},), spec={}, key=key)
    definition = EnvDefinition(id="own", entry_point="own:Own")
    task = BoundEnv(name="own", config=EnvConfig(), definition=definition).task(made, made.key)
    assert from_json(Task, to_json(task.without_data)) == task.without_data
