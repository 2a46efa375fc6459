"""Results of a rollout: turns, trajectories and groups, with the weight version of each sampled token.

A trajectory may have its turns in another process: see `rollout/stored_turns.py`.

Suffixes: `_T` one entry per sampled token of a turn.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.process import StoredResult
from temper.envs.core.step_result import ToolSpan
from temper.envs.core.task import Message, Task
from temper.rewards.pickling import pickle_in_order
from temper.rewards.score import Score, correctness
from temper.rollout.expert_choices import Choices
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import Floats, Ids, Marks, same_values


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WeightVersion:
    """The number of the push that brought the weights; 0 for the initial weights."""

    step: int


class Stop(Enum):
    """Why a trajectory ended."""

    ENV = "env"  # the environment ended the episode
    TURNS = "turns"  # the turn limit of the environment or the run
    LENGTH = "length"  # the token limit of a turn
    EPISODE_LENGTH = "episode_length"  # the token limit of the episode, inside a turn or between turns
    PROMPT_TOO_LONG = "prompt_too_long"  # no token is left for an answer: a failure, never a wrong answer
    FAILURE = "failure"  # a failure outside the model: see `Trajectory.failure`


class Resumption(Enum):
    """Whether another process continued an episode in flight."""

    NO = "no"  # one process ran the whole episode
    RESUMED = "resumed"  # it continued from its partial turns
    RESTARTED = "restarted"  # it began anew: the environment did not reach the same state


LASTING = (FailureKind.PROMPT_TOO_LONG, FailureKind.REFUSED)
"""Failures that a retry repeats."""
TOKEN_LIMITS = (Stop.LENGTH, Stop.EPISODE_LENGTH)
"""Token limits, which truncate an answer."""


class TurnFault(Enum):
    """A fault in the form of a turn, independent of its score."""

    THINKING = "thinking"  # the thinking is not closed exactly once, or a tag is in the answer
    TOOL_CALL = "tool_call"  # a tool call is unreadable, names no tool or lacks an argument


class Closed(Enum):
    """How the thinking of a turn ended."""

    ITSELF = "itself"  # the model closed it
    LINE_END = "line_end"  # the budget ended it at a line end
    ABRUPT = "abrupt"  # the budget ended it inside a line
    NEVER = "never"  # it was never closed
    NONE = "none"  # thinking is off


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingStats:
    """Sampled tokens of a turn before and after the end of its thinking, and how it ended.

    The closing tag counts to neither. With thinking off all tokens count to the answer.
    """

    tokens: int
    answer_tokens: int
    closed: Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How a turn or an episode spent its seconds. The rest is rendering and bookkeeping.

    `queue_s`: waiting for the engine and for an environment thread. `generate_s`: the engine. `step_s`: the environment,
    including its wait for the sandbox.
    """

    queue_s: float = 0.0
    generate_s: float = 0.0
    step_s: float = 0.0

    def __add__(self, other: "Times") -> "Times":
        return Times(
            queue_s=self.queue_s + other.queue_s,
            generate_s=self.generate_s + other.generate_s,
            step_s=self.step_s + other.step_s,
        )


NO_TIME = Times()
NO_THINKING = ThinkingStats(tokens=0, answer_tokens=0, closed=Closed.NONE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One call of the engine and the environment's response. Its arrays are read-only (`rollout/token_arrays.py`).

    `context_ids` are the ids that the engine sees *for the first time* in this turn: the prompt, or the rendered
    observation in later turns. For two turns the engine sees `context_1`, then `context_1 + sampled_1 + context_2`. The
    training sequence is `context_1 + sampled_1 + context_2 + sampled_2`.

    `injected_T` marks inserted tokens: their log-probability is NaN and they carry no loss. `text` is the whole sampled
    text, `reasoning` and `answer` are its parts. `thinking` measures both, `faults` names errors in the form. `truncated`
    is true if a token limit ended it. `experts` are the recorded choices, shape (ids, expert layers, experts per token), one
    row for each id of `context_ids` and `sampled_ids`; -1 if the engine did not process the id. `times` cover this turn.
    `tool_spans` are tool calls within `step_s`.
    """

    context_ids: Ids
    sampled_ids: Ids
    logprobs_T: Floats
    versions_T: Ids
    injected_T: Marks
    text: str
    reasoning: str | None = None
    answer: str = ""
    observation: tuple[Message, ...] = field(default=())
    thinking: ThinkingStats = NO_THINKING
    faults: tuple[TurnFault, ...] = ()
    truncated: bool = False
    experts: Choices | None = field(default=None, compare=False)
    times: Times = field(default=NO_TIME, compare=False)
    tool_spans: tuple[ToolSpan, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        count = len(self.sampled_ids)
        for name, values in (
            ("logprobs_T", self.logprobs_T),
            ("versions_T", self.versions_T),
            ("injected_T", self.injected_T),
        ):
            if len(values) != count:
                raise ValueError(f"{name} has {len(values)} entries for {count} sampled tokens")
        ids = len(self.context_ids) + count
        if self.experts is not None and len(self.experts) != ids:
            raise ValueError(f"experts has {len(self.experts)} entries for {ids} ids")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Turn) and same_values(self, other)

    @property
    def forced_end_start(self) -> int | None:
        """The place of the first injected token, None without one."""
        return int(self.injected_T.argmax()) if self.injected_T.any() else None


class TurnTotals(NamedTuple):
    """Sums over the turns of a trajectory, in tokens.

    `malformed_turns` counts turns with a fault of their thinking. `version_sum` adds the weight version of each sampled token.
    `forced_end_start` belongs to the first turn.
    """

    sampled_tokens: int
    model_tokens: int
    longest_turn: int
    thinking_tokens: int
    answer_tokens: int
    malformed_turns: int
    faults: frozenset[TurnFault]
    version_sum: int
    has_several_versions: bool
    forced_end_start: int | None

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> "TurnTotals":
        if type(turns) is StoredTurns:  # quicker than `isinstance` of an abstract class
            return turns.totals
        sampled = [len(turn.sampled_ids) for turn in turns]
        first = next((turn.versions_T[0] for turn in turns if len(turn.versions_T)), 0)
        return cls(
            sampled_tokens=sum(sampled),
            model_tokens=sum(sampled) - sum(int(turn.injected_T.sum()) for turn in turns),
            longest_turn=max(sampled, default=0),
            thinking_tokens=sum(turn.thinking.tokens for turn in turns),
            answer_tokens=sum(turn.thinking.answer_tokens for turn in turns),
            malformed_turns=sum(TurnFault.THINKING in turn.faults for turn in turns),
            faults=frozenset(fault for turn in turns for fault in turn.faults),
            version_sum=sum(int(turn.versions_T.sum(dtype=np.int64)) for turn in turns),
            has_several_versions=any(bool((turn.versions_T != first).any()) for turn in turns),
            forced_end_start=turns[0].forced_end_start if turns else None,
        )


class StoredTurns(Sequence[Turn]):
    """Turns that another process stored, at `place` of its payload. Only their number and totals are here."""

    __slots__ = ("_count", "place", "reference", "totals")

    def __init__(self, count: int, place: int, totals: TurnTotals, reference: StoredResult | None = None) -> None:
        self._count, self.place, self.totals, self.reference = count, place, totals, reference

    def __reduce__(self) -> tuple[type["StoredTurns"], tuple[Any, ...]]:
        return StoredTurns, (self._count, self.place, self.totals, self.reference)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        """Raise an error: the turns are not in this process."""
        raise LookupError("these turns are stored in another process; read them with `read_groups`")


@pickle_in_order
@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode: its turns, its end, and either a reward with its score or a typed failure.

    `seconds` is the total time. `times` covers the turns and the creation of the environment. `forced_answers` are
    episodes that share its beginning, one for each nested budget that would change it, because the budget ends the reasoning
    or sets another limit to the answer. They may have failed.
    `parents[n]` is the index of the turn that turn n continues, or -1. A turn with -1 begins with a whole prompt. If `parents`
    is empty, each turn continues the one before.
    """

    task: Task
    turns: Sequence[Turn]
    stop: Stop
    reward: float | None = None
    score: Score = field(default_factory=Score)
    failure: Failure | None = None
    seconds: float = 0.0
    times: Times = NO_TIME
    resumption: Resumption = Resumption.NO
    forced_answers: tuple["Trajectory", ...] = ()
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (self.reward is None) == (self.failure is None):
            raise ValueError(f"a trajectory needs either a reward or a failure, not {self.reward} and {self.failure}")
        if self.parents and len(self.parents) != len(self.turns):
            raise ValueError(f"parents has {len(self.parents)} entries for {len(self.turns)} turns")
        if isinstance(self.turns, list):  # as read from a file
            object.__setattr__(self, "turns", tuple(self.turns))

    def with_task(self, task: Task) -> "Trajectory":
        """Return it as an answer to this task. Forced answers keep their budgets."""
        forced = (one.with_task(replace(task, thinking=one.task.thinking)) for one in self.forced_answers)
        return replace(self, task=task, forced_answers=tuple(forced))

    @property
    def branches(self) -> list[list[int]]:
        """The indices of the turns of each sequence that the engine has seen, from the prompt to a last turn."""
        if not self.parents:
            return [list(range(len(self.turns)))]
        return [self._branch(last) for last in last_turns(self.parents)]

    def _branch(self, last: int) -> list[int]:
        found = []
        while last >= 0:
            found.append(last)
            last = self.parents[last]
        return found[::-1]

    @property
    def budget_rewards(self) -> list[float]:
        """Rewards at each nested budget and without one.

        A budget without a forced answer has the final reward. A failed answer takes the reward of the next larger budget.
        """
        assert self.reward is not None
        rewards = [self.reward]
        for budget in reversed(self.task.thinking.nested_budgets):
            forced = self.forced_answer(budget)
            reward = self.reward if forced is None else forced.reward
            rewards.append(rewards[-1] if reward is None else reward)
        return rewards[::-1]

    def forced_answer(self, budget: int) -> "Trajectory | None":
        """Return the forced answer at a budget, or None if the budget would change nothing."""
        return next((one for one in self.forced_answers if one.task.thinking.budget == budget), None)

    def shared_tokens(self, forced: "Trajectory") -> int:
        """Return how many tokens a forced answer shares with this episode: up to its forced end, or to the shorter end."""
        own = forced.totals
        return min(self.sampled_tokens, own.sampled_tokens if own.forced_end_start is None else own.forced_end_start)

    @property
    def totals(self) -> TurnTotals:
        return TurnTotals.of(self.turns)

    @property
    def sampled_tokens(self) -> int:
        return self.totals.sampled_tokens

    @property
    def all_sampled_tokens(self) -> int:
        """Sampled tokens with all forced answers, without the tokens that they share."""
        own = (one.sampled_tokens - self.shared_tokens(one) for one in self.forced_answers)
        return self.sampled_tokens + sum(own)

    @property
    def model_tokens(self) -> int:
        """Number of tokens that the model sampled itself."""
        return self.totals.model_tokens

    @property
    def thinking_tokens(self) -> int:
        return self.totals.thinking_tokens

    @property
    def answer_tokens(self) -> int:
        return self.totals.answer_tokens

    @property
    def well_formed(self) -> bool:
        """Whether the thinking of each turn is closed exactly once and no answer contains a tag."""
        return not self.totals.malformed_turns

    @property
    def correct(self) -> bool:
        """Whether the answer is right: the part `correct`, or a reward of 1 if the environment has no parts."""
        return correctness(self.score.parts, self.reward) >= 1.0

    @property
    def worth_retrying(self) -> bool:
        """Whether it failed in a way that a retry may fix."""
        return self.failure is not None and self.failure.kind not in LASTING

    @property
    def truncated(self) -> bool:
        """Whether a token limit truncated it."""
        return self.stop in TOKEN_LIMITS

    @property
    def truncated_branches(self) -> list[list[int]]:
        """The branches whose last turn a token limit truncated, or all if the limit was reached between two turns."""
        if not self.truncated:
            return []
        return [branch for branch in self.branches if self.turns[branch[-1]].truncated] or self.branches


def last_turns(parents: Sequence[int]) -> list[int]:
    """Return the turns that no other turn continues."""
    return sorted(set(range(len(parents))) - set(parents))


def well_formed_share(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of well-formed turns, or 1 without turns."""
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    return 1 - sum(trajectory.totals.malformed_turns for trajectory in trajectories) / turns if turns else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Permission to run one group: its number in the order of groups, its task, its sampling, and the version at admission."""

    number: int
    task: Task
    admitted: WeightVersion
    sampling: Sampling = PLAIN


@pickle_in_order
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The answers to one task, scored together. `failed` ones have no score.

    `retried` are failures that a retry replaced.
    """

    ticket: Ticket
    trajectories: tuple[Trajectory, ...]
    failed: tuple[Trajectory, ...] = field(default=())
    retried: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, ticket: Ticket, answers: Sequence[Trajectory]) -> "Group":
        return cls(
            ticket=ticket,
            trajectories=tuple(answer for answer in answers if answer.failure is None),
            failed=tuple(answer for answer in answers if answer.failure is not None),
        )

    def with_task(self, task: Task) -> "Group":
        """Return it as answers to this task."""
        scored, failed = (tuple(one.with_task(task) for one in some) for some in (self.trajectories, self.failed))
        return replace(self, ticket=replace(self.ticket, task=task), trajectories=scored, failed=failed)

    @property
    def without_data(self) -> "Group":
        """The group for a file, without its task's data."""
        return self.with_task(self.ticket.task.without_data)

    def merge_retry(self, again: "Group") -> "Group":
        """Return this group with its retryable failures replaced by another attempt."""
        lost = tuple(t for t in self.failed if not t.worth_retrying)
        return Group(
            ticket=self.ticket,
            trajectories=(*self.trajectories, *again.trajectories),
            failed=(*lost, *again.failed),
            retried=(*self.retried, *(t.failure for t in self.failed if t.failure is not None and t.worth_retrying)),
        )

    def fail(self, failure: Failure) -> "Group":
        """Return the group with this failure in place of all its rewards."""
        lost = (replace(one, reward=None, failure=failure, stop=Stop.FAILURE) for one in self.trajectories)
        return replace(self, trajectories=(), failed=(*self.failed, *lost))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All failures, of the first and the last attempts."""
        return (*self.retried, *(t.failure for t in self.failed if t.failure is not None))

    @property
    def worth_retrying(self) -> int:
        """Number of failed episodes that a retry may fix."""
        return sum(t.worth_retrying for t in self.failed)

    @property
    def rewards_G(self) -> list[float]:
        return [t.reward for t in self.trajectories if t.reward is not None]

    def has_fault(self, faults: Collection[TurnFault]) -> bool:
        """Return whether any turn has one of these faults."""
        return any(not t.totals.faults.isdisjoint(faults) for t in self.trajectories)
