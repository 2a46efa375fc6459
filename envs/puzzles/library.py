"""Client of the reasoning-gym process (`envs.puzzles.library_child`): puzzles and scores by data set and seed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from temper.envs.core.clock import stop_clock
from temper.envs.core.errors import GraderError
from temper.envs.sandbox.line_process import LineProcess
from temper.envs.sandbox.per_process import PerProcess

CHILD = Path(__file__).with_name("library_child.py")
MAKE_S, SCORE_S = 120.0, 30.0
Purpose = Literal["making", "scoring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a puzzle, which is the same on every machine with the same version of the library."""

    dataset: str
    config: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """A question and a right answer, or None if the data set has none."""

    question: str
    answer: str | None


class PuzzleLibrary:
    """One child process. Requests run one at a time, from any thread, with their own deadlines."""

    def __init__(self) -> None:
        self.process = LineProcess(CHILD, "reasoning-gym")

    def datasets(self) -> dict[str, list[str]]:
        self.process.start()
        return dict(self.process.ready["datasets"])

    def make(self, origin: Origin) -> Puzzle:
        with stop_clock():
            reply = self.process.ask(asdict(origin), seconds=MAKE_S)
        if reply is None:
            raise GraderError(f"{origin} took more than {MAKE_S:.0f} s to make")
        if "error" in reply:
            raise ValueError(f"reasoning-gym can't make {origin}: {reply['error']}")
        return Puzzle(question=reply["question"], answer=reply["answer"])

    def score(self, origin: Origin, text: str) -> float | None:
        """Return the score of an answer, from 0 to 1, 0 if the scorer raised, or None if the answer took too long.

        Raise `GraderError` if the library can't score a right answer either.
        """
        with stop_clock(), self.process.lock:
            answer = self.make(origin).answer
            reply = self._score(origin, text)
            if (reply is None or reply["score"] is None) and answer is not None:
                self.make(origin)
                right = self._score(origin, answer)
                if right is None or right["score"] != 1.0:
                    raise GraderError(f"{origin}: the library can't score its own answer ({right})")
            return None if reply is None else float(reply["score"] or 0.0)

    def _score(self, origin: Origin, text: str) -> dict[str, Any] | None:
        return self.process.ask(asdict(origin) | {"text": text}, seconds=SCORE_S)


SHARED = PerProcess(PuzzleLibrary)


def shared_library(purpose: Purpose) -> PuzzleLibrary:
    return SHARED.get(purpose)
