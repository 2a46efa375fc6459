"""A run's folder with answers rolled out and scored by the environment itself, so that its verifier can score them again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.viewed_run import training

from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import UNLIMITED, Thinking, up_to
from temper.envs.core.turn_text import call_message, parse_turn, turn_text
from temper.envs.env_episode import EnvEpisode
from temper.envs.source import SizedSource, open_source
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir, RunState
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Closed, Group, Stop, ThinkingStats, Ticket, Times, Trajectory, Turn, WeightVersion
from temper.rollout.trajectory_json import write_groups

CONFIG = "name: played\nseed: 5\nstages: [init, rl]\nenvs: {math: {tools: [calculator, python]}}\n"
SLEEP_S = 0.3
TASKS = {40: 3, 41: 9}
"""Task indices of the two groups' tickets."""


def write_played_run(folder: Path) -> RunDir:
    """A run with step 10 of `rl`: sums with two tools.

    The first group has unlimited thinking and version 3: a right answer after two calls, a wrong one, and a truncated one.
    The second has a budget and version 5: two right answers.
    """
    run = write_empty_run(folder)
    rows = [
        {"stage": "rl", "event": "admitted", "time": 0.0, "ticket": ticket, "env": "math", "index": index, "version": 1}
        for ticket, index in TASKS.items()
    ]
    run.event_log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = sums_of(run)
    first, second = (source.task(index) for index in TASKS.values())
    wrong = "2</think>\n\\boxed{-1}"
    groups = [
        played_group(
            40, first, [[calls(first), right(first)], [wrong], ["so many words"]], version=3, thinking=UNLIMITED
        ),
        played_group(41, second, [[right(second)], [right(second)]], version=5, thinking=up_to(32)),
    ]
    answers = [one for group in groups for one in group.trajectories]
    advantages = [0.5, -0.25, -0.25, 0.0, 0.0]
    rows_of_training = [
        training(answer.model_tokens, version=6, advantage=advantage)
        for answer, advantage in zip(answers, advantages, strict=True)
    ]
    write_groups(run.trajectory_file("rl", 10), groups, training=rows_of_training)
    return run


def write_empty_run(folder: Path) -> RunDir:
    """A run with a model's tokenizer and without answers."""
    run = RunDir(folder)
    run.trajectories.mkdir(parents=True)
    run.config.write_text(CONFIG, encoding="utf-8")
    model = folder / "model"
    model.mkdir()
    byte_tokenizer().save_pretrained(model)
    (model / "config.json").write_text("{}", encoding="utf-8")
    run.store(RunState(model="model", stages={"rl": "rl"}))
    return run


def sums_of(run: RunDir) -> SizedSource:
    return open_source(load_config(run.config, []).environments["math"], split="train", seed=5)


def right(task: Task) -> str:
    return f"so</think>\n\\boxed{{{task.spec['answer']}}}"


def calls(task: Task) -> str:
    """A turn that sleeps in one tool and calculates in another."""
    sleeps = call_message("python", {"code": f"import time\ntime.sleep({SLEEP_S})\nprint('slept')"})
    reckons = call_message("calculator", {"expression": str(task.spec["answer"])})
    return turn_text({"role": "assistant", "content": "", "tool_calls": [sleeps, reckons]}, thinks=True)


def played_group(number: int, task: Task, texts: Sequence[Sequence[str]], *, version: int, thinking: Thinking) -> Group:
    ticket = Ticket(number=number, task=replace(task, thinking=thinking), admitted=WeightVersion(step=version))
    return Group.of(ticket, [_played(ticket.task, each, version=version) for each in texts])


def _played(task: Task, texts: Sequence[str], *, version: int) -> Trajectory:
    """Play the turns. A turn without an end of thinking is truncated at its limit."""
    episode, turns = EnvEpisode(task), []
    episode.begin()
    said: tuple[Message, ...] = task.messages
    result = StepResult()
    for text in texts:
        cut = "" if "</think>" in text else "at the token limit of a turn"
        result = episode.step(parse_turn(text, thinks=True), limit=cut)
        turns.append(_turn(said, text, result, version=version))
        said = result.messages
    stop = Stop.LENGTH if result.truncated else Stop.ENV
    return Trajectory(task=task, turns=tuple(turns), stop=stop, reward=result.reward, score=result.score, seconds=2.0)


def _turn(before: Sequence[Message], text: str, result: StepResult, *, version: int) -> Turn:
    """A turn whose n-th token has the log-probability -n/100."""
    made = byte_tokenizer()
    context = made.encode("".join(message["content"] for message in before), add_special_tokens=False)
    sampled = made.encode(text, add_special_tokens=False)
    thinks = "</think>" in text
    thought = len(made.encode(text.partition("</think>")[0], add_special_tokens=False))
    stats = ThinkingStats(
        tokens=thought, answer_tokens=len(sampled) - thought, closed=Closed.ITSELF if thinks else Closed.NEVER
    )
    step_s = sum(span.seconds for span in result.tool_spans) + 0.125
    return Turn(
        context_ids=as_ids(context),
        sampled_ids=as_ids(sampled),
        logprobs_T=as_floats([-place / 100 for place in range(len(sampled))]),
        versions_T=as_ids([version] * len(sampled)),
        injected_T=as_marks([False] * len(sampled)),
        text=text,
        answer=text,
        thinking=stats,
        observation=result.messages,
        times=Times(queue_s=0.0625, generate_s=0.25, step_s=step_s),
        tool_spans=result.tool_spans,
    )
