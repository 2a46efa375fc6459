"""What a rollout leaves: turns, trajectories, groups, and the weight version that sampled each token.

Suffixes: `_T` one entry per sampled token of a turn.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import total_ordering

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.step_result import ToolSpan
from temper.envs.core.task import Message, Task
from temper.rewards.score import Score, correctness
from temper.rollout.expert_choices import Choices
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import Floats, Ids, Marks, same_values


@total_ordering
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """Which weights: the number of the push that brought them, 0 for those the engine was started with."""

    step: int

    def __lt__(self, other: "WeightVersion") -> bool:
        return self.step < other.step


class Stop(Enum):
    """Why a trajectory ended."""

    ENV = "env"  # the environment said that the episode is over
    TURNS = "turns"  # the turn limit was reached: the environment's own, or the run's where it sets one
    LENGTH = "length"  # the token limit of a turn was reached
    EPISODE_LENGTH = "episode_length"  # the token limit of the episode was reached, inside a turn or between two
    PROMPT_TOO_LONG = "prompt_too_long"  # the prompt left no token for an answer: a failure, never a wrong answer
    FAILURE = "failure"  # something else outside the model broke: see `Trajectory.failure`


class Resumption(Enum):
    """What became of an episode that was in flight when another process played it."""

    NO = "no"  # it was not: one process played it from its first turn to its last
    RESUMED = "resumed"  # it continued from its partial turns
    RESTARTED = "restarted"  # it began anew: its environment did not reach the same state


LASTING = (FailureKind.PROMPT_TOO_LONG, FailureKind.REFUSED)
"""Failures of which another attempt has as many."""
TOKEN_LIMITS = (Stop.LENGTH, Stop.EPISODE_LENGTH)
"""The limits on tokens, which cut an answer off where it stands."""


class TurnFault(Enum):
    """What is wrong with the form of a turn, whatever its answer is worth."""

    THINKING = "thinking"  # the thought is closed not at all or several times, or a tag stands in the answer
    TOOL_CALL = "tool_call"  # a tool call can't be read, names no tool or lacks an argument


class Closed(Enum):
    """How a thought ended."""

    ITSELF = "itself"  # the model closed it
    LINE_END = "line_end"  # closed by force where a line ended
    ABRUPT = "abrupt"  # closed by force inside a line
    NEVER = "never"  # it was never closed
    NONE = "none"  # there was no thought: thinking is off


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingStats:
    """The measures of one turn: sampled tokens before and after the closing of the thought, and how it was closed.

    The closing tag itself counts to neither; with thinking off all tokens are the answer's.
    """

    tokens: int
    answer_tokens: int
    closed: Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What the seconds of a turn or of an episode went into; what they lack of the whole is rendering and bookkeeping.

    `queue_s` is the wait for the engine and for one of the environment's threads, `generate_s` the engine's work and
    `step_s` the environment's, which includes what it waits for the sandbox.
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
    """One call of the engine and what followed it.

    `context_ids` are the ids that the engine saw *for the first time* in this turn: the prompt in the first turn, the
    rendered observation in later ones. Of a trajectory of two turns the engine saw `context_1` and then
    `context_1 + sampled_1 + context_2`; its training sequence is `context_1 + sampled_1 + context_2 + sampled_2`.
    `injected_T` marks tokens that were inserted, not sampled: their log-probability is NaN and carries no loss.
    All of these are read-only arrays (`rollout/token_arrays.py`).
    `text` is all that was sampled, `reasoning` and `answer` are what was read of it, in the format of the model's family.
    `thought` says how long thought and answer are and how the thought was closed, `faults` what is wrong with the form.
    `experts` are the expert choices that the engine recorded, of shape (ids, expert layers, experts of a token), a row for
    each of `context_ids` and `sampled_ids`; -1 for an id that it did not process. None where it recorded none.
    `times` are those of this turn alone, `tool_spans` the tool calls in its `step_s`, as far as the environment tells them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode: its turns, why it ended, and either a reward with the score that it comes from or a typed failure.

    `seconds` is the whole, `times` says what it went into: the turns, and the making of the environment before them.
    `resumption` says whether several processes played it, one after the other.
    """

    task: Task
    turns: tuple[Turn, ...]
    stop: Stop
    reward: float | None = None
    score: Score = field(default_factory=Score)
    failure: Failure | None = None
    seconds: float = 0.0
    times: Times = NO_TIME
    resumption: Resumption = Resumption.NO

    def __post_init__(self) -> None:
        if (self.reward is None) == (self.failure is None):
            raise ValueError(
                f"a trajectory has a reward or a failure, not both or neither: {self.reward}, {self.failure}"
            )

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.sampled_ids) for turn in self.turns)

    @property
    def model_tokens(self) -> int:
        """Tokens that the model sampled itself."""
        return sum(len(turn.injected_T) - int(turn.injected_T.sum()) for turn in self.turns)

    @property
    def thinking_tokens(self) -> int:
        return sum(turn.thinking.tokens for turn in self.turns)

    @property
    def answer_tokens(self) -> int:
        return sum(turn.thinking.answer_tokens for turn in self.turns)

    @property
    def well_formed(self) -> bool:
        """Whether every turn has exactly one closing of its thought and no tag in the answer."""
        return not any(TurnFault.THINKING in turn.faults for turn in self.turns)

    @property
    def correct(self) -> bool:
        """Whether the answer was right: the part `correct`, or for an environment without parts a reward of 1."""
        return correctness(self.score.parts, self.reward) >= 1.0

    @property
    def worth_retrying(self) -> bool:
        """Whether it failed in a way that another attempt may not."""
        return self.failure is not None and self.failure.kind not in LASTING

    @property
    def truncated(self) -> bool:
        """Whether a limit on tokens cut it off."""
        return self.stop in TOKEN_LIMITS


def well_formed_share(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of turns whose thought is closed exactly once and whose answer has no tag; 1 where there is no turn."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    return 1 - sum(TurnFault.THINKING in turn.faults for turn in turns) / len(turns) if turns else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A right to run one group: its place in the order of all groups, its task, and the version it was admitted at.

    `sampling` is how its answers are drawn.
    """

    number: int
    task: Task
    admitted: WeightVersion
    sampling: Sampling = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The answers to one task, scored together. Failed ones are kept apart: they carry no score.

    `retried` are the failures that were tried again and are no longer among `failed`.
    """

    ticket: Ticket
    trajectories: tuple[Trajectory, ...]
    failed: tuple[Trajectory, ...] = field(default=())
    retried: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, ticket: Ticket, answers: Sequence[Trajectory]) -> "Group":
        """Return the group of these answers, in their order."""
        return cls(
            ticket=ticket,
            trajectories=tuple(answer for answer in answers if answer.failure is None),
            failed=tuple(answer for answer in answers if answer.failure is not None),
        )

    def merge_retry(self, again: "Group") -> "Group":
        """Return this group with another attempt in the place of the failed episodes for which one is worth making."""
        lost = tuple(t for t in self.failed if not t.worth_retrying)
        return Group(
            ticket=self.ticket,
            trajectories=(*self.trajectories, *again.trajectories),
            failed=(*lost, *again.failed),
            retried=(*self.retried, *(t.failure for t in self.failed if t.failure is not None and t.worth_retrying)),
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every failure, of the first attempts and of the last."""
        return (*self.retried, *(t.failure for t in self.failed if t.failure is not None))

    @property
    def worth_retrying(self) -> int:
        """How many failed episodes may do better in another attempt."""
        return sum(t.worth_retrying for t in self.failed)

    @property
    def rewards_G(self) -> list[float]:
        return [t.reward for t in self.trajectories if t.reward is not None]

    def has_fault(self, faults: Collection[TurnFault]) -> bool:
        """Return whether a turn of any answer has one of these faults."""
        return any(fault in faults for t in self.trajectories for turn in t.turns for fault in turn.faults)
