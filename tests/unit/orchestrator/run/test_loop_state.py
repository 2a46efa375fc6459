"""The loop's state in a checkpoint: round trip, or refusal with a remedy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.plain_pool import TICKET

from temper.envs.core.errors import Failure, FailureKind
from temper.orchestrator.loop.buffer import BufferState, HeldGroup, HeldTicket
from temper.orchestrator.loop.length_penalty import EnvPenalty
from temper.orchestrator.loop.mixture import Draw
from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.run.loop_state import (
    EPISODES_FILE,
    GROUPS_FILE,
    STATE_FILE,
    LoopState,
    read_loop,
    write_groups_of,
)
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.trajectory import Group, Stop, Trajectory

DRAW = Draw(env="math", index=2)
STATE = LoopState(
    buffer=BufferState(
        next_ticket=5, totals=Totals(issued=5, in_flight=5), tickets=(HeldTicket(number=4, draw=DRAW, admitted=6),)
    ),
    mixture={"drawn": {"math": 3}},
    failures={"math": [(8, (Failure(kind=FailureKind.TIMEOUT, message="too slow"),))]},
    version=7,
    event_rows=12,
    penalties={"math": EnvPenalty(penalty=0.1, length=20.0)},
)
GROUP = Group(ticket=replace(TICKET, number=3), trajectories=())
ANSWER = Trajectory(task=TICKET.task, turns=(), stop=Stop.ENV, reward=1.0)
PARTIAL = PartialGroup(ticket=replace(TICKET, number=4), attempt=1, finished={2: ANSWER}, before=GROUP)


def checkpoint(place: Path) -> Path:
    """Write the files of a checkpoint with one waiting group and one group in flight."""
    (place / STATE_FILE).write_text(STATE.to_text())
    write_groups_of(place, [HeldGroup(held="ready", draw=DRAW, group=GROUP)], [PARTIAL], [], {4})
    return place


def test_what_a_checkpoint_says_of_the_loop_is_read_back(tmp_path: Path) -> None:
    saved = read_loop(checkpoint(tmp_path))
    assert saved.state == STATE
    assert saved.groups == [HeldGroup(held="ready", draw=DRAW, group=GROUP.without_data)]
    (partial,) = saved.episodes
    assert partial.with_ticket(PARTIAL.ticket) == replace(PARTIAL, before=replace(GROUP, ticket=PARTIAL.ticket))


@pytest.mark.parametrize("told", [{"mixture": {}, "buffer": []}, {"format": 9, "tickets": []}])
def test_a_checkpoint_of_another_format_is_named_with_what_to_do(tmp_path: Path, told: dict[str, object]) -> None:
    (checkpoint(tmp_path) / STATE_FILE).write_text(json.dumps(told))
    (tmp_path / GROUPS_FILE).unlink()
    words = f"{tmp_path}.* format {told.get('format')}, .* model.path={tmp_path}"
    with pytest.raises(ValueError, match=words):
        read_loop(tmp_path)


@pytest.mark.parametrize("name", [STATE_FILE, GROUPS_FILE, EPISODES_FILE])
@pytest.mark.parametrize("text", [None, '{"format": 1', '{"format": 1}[]', '{"format":' * 3000])
def test_a_file_that_is_missing_or_damaged_is_named_with_what_to_do(
    tmp_path: Path, name: str, text: str | None
) -> None:
    file = checkpoint(tmp_path) / name
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=f"{file} .* {tmp_path}"):
        read_loop(tmp_path)


def test_a_state_that_lacks_a_part_is_damaged(tmp_path: Path) -> None:
    file = checkpoint(tmp_path) / STATE_FILE
    told = json.loads(file.read_text())
    del told["event_rows"]
    file.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="event_rows"):
        read_loop(tmp_path)
