"""The multi-turn dialogues of the Berkeley Function-Calling Leaderboard on its own simulators, which the user installs.

Option: `simulators`, the folder of a clone of github.com/ShishirPatil/gorilla or of an installed `bfcl_eval`. The default
is the clone that contains the rows, otherwise the installed package. The simulators run in a separate process
(`simulators`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.core.bounds import require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.row_format import RowFormat
from temper.envs.core.step_result import StepResult, add_span
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import Call, ParsedTurn, make_call_turn, turn_text
from temper.envs.multi_turn_calls import rows
from temper.envs.multi_turn_calls.simulator_names import ERROR, REMEDY, package_for, package_named
from temper.envs.multi_turn_calls.simulators import Playback, shared_simulators
from temper.envs.task_env import TaskEnv
from temper.rewards.score import Score, binary_score, policy_fault

Calls = list[dict[str, Any]]
DONE = "Done."
MAX_CALLS = 64
TOO_MANY = f"{ERROR} more than {MAX_CALLS} calls in a turn"
MAX_STEPS = 20
MAX_TURNS = 8 * (MAX_STEPS + 1)
"""Turns of the model. Published dialogues have up to eight user turns."""
USER_TURNS = "user_turns"


class MultiTurnCallsEnv(TaskEnv):
    """A user makes several requests in turn. Turns of the model with calls are answered by one tool message per call.

    A turn without calls ends the user turn, which `fault_of` checks. The first wrong user turn ends the episode. A turn
    with an unreadable call counts as one without calls. Up to 20 turns of the model per user turn may have calls. The
    episode is right if all user turns are. Parts: `user_turns` (the share of right ones) and `format` (0 if a call was
    unreadable).
    """

    def begin(self, task: Task) -> None:
        self.calls: list[dict[str, Any]] = []
        self.right = self.steps = self.unreadable = 0
        self.played: Playback | None = None

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        calls = [call for call in parsed.calls if isinstance(call, Call)]
        if calls and len(calls) == len(parsed.calls):
            return self._step(task, calls)
        self.unreadable += len(parsed.calls) - len(calls)
        fault = self._fault(task)
        if fault:
            return self.end(self._score(task, f"user's turn {self.right}: {fault}"))
        self.right += 1
        self.steps = 0
        if self.right == len(task.spec["reference"]):
            return self.end(self._score(task, ""))
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns")
        return self.continue_with(task.spec["later"][self.right - 1])

    def _step(self, task: Task, calls: list[Call]) -> StepResult:
        if self.steps == MAX_STEPS:
            return self.truncate(f"after {MAX_STEPS} turns with calls in user's turn {self.right}")
        self.steps += 1
        made = [{"name": call.name, "arguments": call.arguments} for call in calls[:MAX_CALLS]]
        self.calls += made
        due = [call for turn in task.spec["reference"][: self.right + 1] for call in turn]
        simulators = shared_simulators(task.env.options["simulators"])
        self.played = simulators.play(rows.scene_of(task), model=self.calls, reference=due)
        if self.played is None:
            return self.end(
                self._with_turns(task, policy_fault(f"the calls of user's turn {self.right} did not come to an end"))
            )
        for call, (began, seconds) in zip(calls[: len(made)], self.played.spans[-len(made) :], strict=True):
            add_span(call, began=began, seconds=seconds)
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns")
        messages: list[Message] = [{"role": "tool", "content": text} for text in self.played.model[-len(made) :]]
        messages += [{"role": "tool", "content": TOO_MANY}] * (len(calls) - len(made))
        return self.continue_with(messages)

    def _fault(self, task: Task) -> str:
        wanted = len(task.spec["reference"][self.right])
        if not wanted:
            return ""
        if self.played is None or not self.steps:
            return "no call"
        played = self.played
        return fault_of(wanted=played.reference[-wanted:], seen=played.model, differing=played.differing)

    def score_so_far(self, task: Task) -> Score:
        return self._score(task, f"{self.right} turns of the user were right")

    def _score(self, task: Task, fault: str) -> Score:
        return self._with_turns(task, binary_score(not fault, well_formed=self.unreadable == 0, detail=fault))

    def _with_turns(self, task: Task, score: Score) -> Score:
        return score.with_parts({USER_TURNS: self.right / len(task.spec["reference"])})


def with_folder(folder: Path, *, package: Path | None) -> EnvDefinition:
    """Return the environment of the rows in a folder. Without a package it uses the simulators that belong to the folder."""
    found = package or package_for(folder)
    load = partial(rows.load, folder=folder, package=found)
    dialogues = RowFormat(name="bfcl_v4_multi_turn", matches=rows.is_dialogue, load=load)
    return replace(_definition(package), formats=(dialogues,), in_folder=None, options={"simulators": str(found)})


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, ("simulators",), "options")
    given = options.get("simulators")
    if given is not None and not isinstance(given, str):
        raise ValueError(f"options.simulators is {given!r}; {REMEDY}")
    return _definition(None if given is None else package_named(given))


def _definition(package: Path | None) -> EnvDefinition:
    return EnvDefinition(
        id="multi_turn_calls",
        entry_point="temper.envs.multi_turn_calls.env:MultiTurnCallsEnv",
        reference=reference,
        negatives=negatives,
        configure=configure,
        in_folder=partial(with_folder, package=package),
        companions=rows.ANSWERS,
        parts=(*PARTS, USER_TURNS),
        max_turns=MAX_TURNS,
    )


def fault_of(*, wanted: Sequence[str], seen: Sequence[str], differing: Sequence[str]) -> str:
    """Return the mistake at the end of a user turn with reference calls, or an empty text.

    The rule follows the leaderboard's `multi_turn_checker`. A turn without reference calls is not checked: the next turn
    shows the state that its calls left. `wanted` are the results of this turn's reference calls, `seen` the results of all
    calls of the model so far. `differing` are the simulator attributes that differ from the state after the reference
    calls.
    """
    if differing:
        return f"{', '.join(differing)} not as wanted"
    missing = Counter(wanted) - Counter(seen)
    return f"{missing.total()} of {len(wanted)} wanted results not seen" if missing else ""


def reference(task: Task) -> list[str]:
    return _turns(task.spec["reference"])


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    turns: list[Calls] = task.spec["reference"]
    for place, calls in enumerate(turns):
        if calls:
            yield f"turn {place} without calls", _turns([*turns[:place], [], *turns[place + 1 :]])
            yield f"turn {place} not ended", _turns(turns[: place + 1])[:-1]
    if any(turns):
        other = [[call | {"name": f"{call['name']}_other"} for call in calls] for calls in turns]
        yield "other functions", _turns(other)


def _turns(turns: list[Calls]) -> list[str]:
    texts = []
    for calls in turns:
        if calls:
            asked = [(call["name"], call["arguments"]) for call in calls]
            texts.append(turn_text(make_call_turn(asked), thinks=False))
        texts.append(DONE)
    return texts


ENVIRONMENT = _definition(None)
