"""Episodes on recorded completions: token-in-token-out, and failures become data, never a zero reward."""

import asyncio
from dataclasses import replace
from pathlib import Path

from support.bound import bound
from support.refusals import failure_kind
from support.replay_engine import Recording, ReplayEngine, read_recording
from support.scripted_engine import RENDERER, TOKENIZER, completion, runner_of

from temper.envs.binding import bind
from temper.envs.catalog import environment
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.source import open_source
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion
from temper.rollout.token_arrays import tokens_of
from temper.rollout.trajectory import FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.trajectory_json import group_lines


def play(task: Task, recording: Recording, limits: EpisodeLimits | None = None) -> Trajectory:
    runner = runner_of(ReplayEngine(recording), limits=limits or EpisodeLimits())
    return asyncio.run(runner.run(task, seed=1))


def math_task() -> Task:
    question = {"role": "user", "content": "2+2=?"}
    return bound(Task(key="t", messages=(question,), spec={"answer": "4", "question": "2+2=?"}), "math")


def test_a_right_answer_keeps_ids_logprobs_and_versions() -> None:
    task, said = math_task(), completion("2+2=4\n</think>\n\\boxed{4}")
    said = replace(said, versions_T=(3,) * len(said.token_ids))
    trajectory = play(task, {RENDERER.prompt_ids(task): [said]})
    (turn,) = trajectory.turns
    assert (trajectory.reward, trajectory.stop) == (1.0, Stop.ENV)
    assert (tokens_of(turn.context_ids), tokens_of(turn.sampled_ids)) == (RENDERER.prompt_ids(task), said.token_ids)
    assert (tuple(turn.logprobs_T), set(turn.versions_T)) == (said.logprobs_T, {3})


def test_an_answer_that_is_cut_off_stops_for_length() -> None:
    task = math_task()
    trajectory = play(task, {RENDERER.prompt_ids(task): [completion("2+2", max_tokens=3)]})
    assert (trajectory.reward, trajectory.stop, trajectory.truncated) == (0.0, Stop.LENGTH, True)


def demonstration(index: int = 0) -> tuple[Task, Recording]:
    """A tool-use task with its expert's completions, as an engine would see them."""
    task = open_source(bind("tool_use", EnvConfig()), split="train", seed=1).task(index)
    demonstrate = environment("tool_use").demonstrate
    assert demonstrate is not None
    seen, recording, observed = RENDERER.prompt_ids(task), {}, []
    for number, message in enumerate(demonstrate(task)):
        if message["role"] == "tool":
            observed.append(message)
            continue
        if number:
            seen = (*seen, *RENDERER.observation_ids(observed, thinks=True))
            observed = []
        ids = RENDERER.encode(RENDERER.answer_text(message, thinks=True))
        recording[seen] = [
            Completion(token_ids=ids, logprobs_T=(-1.0,) * len(ids), versions_T=(0,) * len(ids), finished=True)
        ]
        seen = (*seen, *ids)
    return task, recording


def test_the_expert_of_a_multi_turn_environment_earns_1() -> None:
    task, recording = demonstration()
    trajectory = play(task, recording)
    assert trajectory.reward == 1.0
    assert len(trajectory.turns) == 3
    whole = [i for turn in trajectory.turns for i in (*turn.context_ids, *turn.sampled_ids)]
    assert TOKENIZER.decode(whole).count("<|im_start|>assistant") == 3
    assert trajectory.turns[0].observation
    for turn in trajectory.turns:
        assert len(turn.tool_spans) == len(turn.observation)
        assert all(0 <= span.began_s < span.began_s + span.seconds <= turn.times.step_s for span in turn.tool_spans)


def test_a_turn_limit_ends_an_episode() -> None:
    task, recording = demonstration()
    trajectory = play(task, recording, limits=EpisodeLimits(turns=1))
    assert (trajectory.stop, trajectory.reward, len(trajectory.turns)) == (Stop.TURNS, 0.0, 1)


def test_an_engine_that_fails_is_a_typed_failure() -> None:
    trajectory = play(math_task(), {})
    assert failure_kind(trajectory) is FailureKind.ENGINE


def test_a_recorded_trajectory_replays_to_the_same_trajectory(tmp_path: Path) -> None:
    task, recording = demonstration(3)
    first = play(task, recording)
    ticket = Ticket(number=0, task=task, admitted=WeightVersion(step=0))
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(group_lines(Group(ticket=ticket, trajectories=(first,)))), encoding="utf-8")
    second = play(task, read_recording(path))
    assert (second.turns, second.reward, second.stop) == (first.turns, first.reward, first.stop)
