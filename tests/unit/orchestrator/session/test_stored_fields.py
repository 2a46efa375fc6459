"""Every field of an answer survives every file and process, also a field that somebody adds to a class.

The values are made from the types of the fields, and none is the field's default.
"""

import json
import math
import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import EnumMeta
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from safetensors.numpy import save
from support.plain_process import PlainResult

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import Mode, Thinking, up_to
from temper.envs.source import content_key
from temper.learner.engine.saved_state import open_state
from temper.learner.token_records import TokenRecord
from temper.learner.training_state import FACTS, CheckpointFacts
from temper.orchestrator.data.sampled_answers import answer_lines, read_answers
from temper.orchestrator.evaluation.remote import KeptAnswers
from temper.orchestrator.loop.buffer import BufferState, HeldGroup
from temper.orchestrator.loop.mixture import Draw
from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.run.loop_state import STATE_FILE, LoopState, SavedLoop, read_loop, write_groups_of
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.session.recording import StepBatch, TrainedWith, read_batch, write_batch
from temper.rollout.codec import Array
from temper.rollout.episodes.resume import PartialEpisode, PartialGroup
from temper.rollout.sampling import Sampling
from temper.rollout.stored_turns import read_all_groups, set_reference, store_turns
from temper.rollout.trajectory import Group, Ticket, Trajectory, WeightVersion
from temper.rollout.weights.weight_files import INDEX, tensor_names

TOKENS, IDS = 3, 6
PLAIN_DATA = {"a": [None, True, -7, 2**70, 0.1, math.nan, "\ud800\u2028"]}
"""Data as tool calls of models may have them."""
THINKING = Thinking(mode=Mode.UNLIMITED, nested_budgets=(4, 8))
TASK = Task(
    env=EnvRef(name="math", options={"level": 3}),
    key="7",
    messages=({"role": "user", "content": "?"},),
    spec=PLAIN_DATA,
    thinking=THINKING,
)
DRAW = Draw(env="math", index=7)
MADE: dict[Any, Any] = {
    Task: TASK,
    Sampling: Sampling(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, max_tokens=7, stop=["\n\n"]),
    int: 3,
    float: -1 / 3,
    str: "d\u00e9j\u00e0 \ud800\u2028",
    bool: True,
    Any: PLAIN_DATA,
}


def made(kind: Any, **given: Any) -> Any:
    """Return a value of a type."""
    if kind in MADE:
        return MADE[kind]
    if isinstance(kind, EnumMeta):
        return list(kind)[-1]
    if is_dataclass(kind):
        return made_instance(kind, given)
    origin, args = get_origin(kind), get_args(kind)
    if origin is np.ndarray:
        return array_of(get_args(args[1])[0])
    if origin is dict:
        return {"one": made(args[1])}
    if origin in (tuple, Sequence):
        return tuple(math.nan if args[0] is float else made(args[0]) for _ in range(TOKENS))
    return made(next(one for one in args if one is not type(None)))  # an optional value


def made_instance(kind: Any, given: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    return kind(**{one.name: made(hints[one.name]) for one in fields(kind) if one.name not in given} | {**given})


def array_of(kind: Any) -> Array:
    """Return values of each token, or the experts of each id. Some are not finite."""
    if kind is np.int16:
        return np.arange(-1, IDS * 4 - 1, dtype=kind).reshape(IDS, 2, 2)
    values = [math.nan, -math.inf, -0.0] if kind is np.float32 else [1, 0, 1]
    return np.array(values, dtype=kind)


def answer(**given: Any) -> Trajectory:
    settings = {"task": TASK, "failure": None, "reward": 1 / 3, "forced_answers": (), "parents": (-1, 0, 0)}
    found = made(Trajectory, **settings | given)
    assert isinstance(found, Trajectory)
    return found


def group() -> Group:
    forced = tuple(answer(task=replace(TASK, thinking=up_to(budget))) for budget in THINKING.nested_budgets)
    failed = made(Trajectory, task=TASK, reward=None, forced_answers=(), parents=())
    found = made(Group, trajectories=(answer(forced_answers=forced), answer()), failed=(failed,))
    assert isinstance(found, Group)
    return found


def content(value: Any) -> Any:
    """Return a value in a form that compares every field and every bit of an array."""
    if is_dataclass(value):
        return type(value), {one.name: content(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {name: content(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [content(one) for one in value]
    return repr(value)


def saved(place: Path, held: list[HeldGroup], waiting: list[PartialGroup], running: list[PartialGroup]) -> SavedLoop:
    tickets = {one.ticket.number for one in (*waiting, *running)}
    write_groups_of(place, held, waiting, running, tickets)
    state = LoopState(
        buffer=BufferState(next_ticket=1, totals=Totals(), tickets=()), mixture={}, failures={}, version=1, event_rows=2
    )
    (place / STATE_FILE).write_text(state.to_text())
    return read_loop(place)


def of_checkpoint(group: Group, place: Path) -> Group:
    (held,) = saved(place, [HeldGroup(held="ready", draw=DRAW, group=group)], [], []).groups
    assert (held.held, held.draw) == ("ready", DRAW)
    return held.group.with_task(TASK)


def of_batch(group: Group, place: Path) -> Group:
    batch = StepBatch(
        stage="rl",
        step=3,
        version=WeightVersion(step=2),
        trained_with=TrainedWith(steps=7),
        groups=[group],
        records=[made(TokenRecord)],
        teacher="a",
        packages={"torch": "2"},
    )
    write_batch(place / "batch.safetensors", batch)
    read = read_batch(place / "batch.safetensors")
    assert content(replace(read, groups=[])) == content(replace(batch, groups=[]))
    return read.groups[0].with_task(TASK)


def of_kept_answers(group: Group, place: Path) -> Group:
    KeptAnswers(place / "kept.jsonl", {}).keep(replace(group, failed=()))
    found = KeptAnswers(place / "kept.jsonl", {}).of(group.ticket)
    assert found is not None
    return replace(found, failed=group.failed)


def of_another_process(group: Group, place: Path) -> Group:
    stored, turns = (pickle.loads(pickle.dumps(one)) for one in store_turns(group))
    return read_all_groups([set_reference(stored, PlainResult(turns))])[0]


@pytest.mark.parametrize("trip", [of_checkpoint, of_batch, of_kept_answers, of_another_process])
def test_every_field_of_a_group_survives(trip: Callable[[Group, Path], Group], tmp_path: Path) -> None:
    assert content(trip(group(), tmp_path)) == content(group())


DEEP = '{"a":' * 3000
"""More nesting than Python reads. No writer makes it, so the file is damaged or crafted."""


def deep_batch(file: Path) -> None:
    file.write_bytes(save({"head": np.frombuffer(zlib.compress(DEEP.encode()), dtype=np.uint8)}))
    read_batch(file)


def deep_answers(file: Path) -> None:
    file.write_text(DEEP)
    read_answers(file, max_tokens=None)


def deep_kept_answers(file: Path) -> None:
    file.write_text(f"{DEEP}\n")
    KeptAnswers(file, {})


def other_kept_answers(file: Path) -> None:
    ticket = made(Ticket)
    row = {"content": content_key(ticket.task), "group": {"ticket": {"number": ticket.number}}}
    file.write_text(f'{{"asked": {{}}}}\n{json.dumps(row)}\n')
    KeptAnswers(file, {}).of(ticket)


def deep_facts(file: Path) -> None:
    facts = file / FACTS
    facts.parent.mkdir(parents=True)
    facts.write_text(DEEP)
    CheckpointFacts.read(file)


def deep_index(file: Path) -> None:
    file.mkdir()
    (file / INDEX).write_text(DEEP)
    tensor_names(file)


def deep_state(file: Path) -> None:
    file.write_bytes(save({"a": np.zeros(1, dtype=np.float32)}, metadata={"a": DEEP}))
    with ExitStack() as stack:
        open_state([file], stack)


def deep_metrics(file: Path) -> None:
    file.write_text(f"{DEEP}\n")
    read_metrics(file)


@pytest.mark.parametrize(
    "read",
    [
        *(deep_batch, deep_answers, deep_kept_answers, other_kept_answers),
        *(deep_facts, deep_index, deep_state, deep_metrics),
    ],
)
def test_a_crafted_file_is_named(read: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "crafted"))):
        read(tmp_path / "crafted")


@pytest.mark.parametrize("is_running", [True, False])
def test_every_field_of_a_group_in_flight_survives(is_running: bool, tmp_path: Path) -> None:
    ticket = made(Ticket)
    episode = made(PartialEpisode)
    partial = made(
        PartialGroup, finished={0: answer()}, unfinished={1: episode, 11: replace(episode, turn=None)}, before=group()
    )
    found = saved(tmp_path, [], *(([], [partial]) if is_running else ([partial], []))).episodes
    assert [content(one.with_ticket(ticket)) for one in found] == [content(partial)]


def test_every_turn_of_a_sampled_answer_survives(tmp_path: Path) -> None:
    right = answer(reward=1.5, parents=())
    (tmp_path / "sampled.jsonl").write_text("\n".join(answer_lines(DRAW, replace(group(), trajectories=(right,)))))
    ((found,), _) = read_answers(tmp_path / "sampled.jsonl", max_tokens=None)
    assert found.draw == DRAW
    assert content(found.turns) == content(right.turns)


def test_no_value_is_the_default_of_its_field() -> None:
    seen = [answer(), answer().turns[0], answer().score, made(PartialEpisode).turn.completion]
    for one in seen:
        for field in fields(one):
            if field.name not in ("failure", "forced_answers") and field.default is not MISSING:
                assert content(getattr(one, field.name)) != content(field.default), field.name
