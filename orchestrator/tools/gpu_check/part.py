"""The parts of the check, and what one finds: figures, some with a bound, and notes."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Needs = Literal["none", "deepspeed", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the check: one file beside this one, with a function `run(report, small=...)`."""

    name: str
    """That of its module."""
    title: str
    seconds: float
    """Deadline, without the time to start and to compile."""
    needs: Needs
    """The library that it needs besides torch and transformers. vllm means the whole stack, Ray among it."""


PARTS = (
    Part(name="kernels", title="Kernels of Mamba-2 against the definition", seconds=90, needs="none"),
    Part(
        name="shared_prompts",
        title="Shared prompts, with layers computed again and without",
        seconds=90,
        needs="none",
    ),
    Part(name="first_runner", title="vLLM's first model runner", seconds=120, needs="vllm"),
    Part(name="second_runner", title="vLLM's second model runner", seconds=150, needs="vllm"),
    Part(name="pushes", title="Each way of pushing weights", seconds=150, needs="vllm"),
    Part(
        name="learning",
        title="The learner: a hybrid of 1 B parameters at ZeRO stage 3",
        seconds=90,
        needs="deepspeed",
    ),
    Part(name="sharing", title="One GPU shared by engine and learner", seconds=210, needs="vllm"),
)
"""In the order in which they run. Together they have 15 minutes, without the time to start and to compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that was found, and what it has to be where it is checked."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is within its bounds; NaN never is."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most) and self.value == self.value

    @property
    def wanted(self) -> str:
        """The bounds for people; empty where there is none."""
        bounds = [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return " and ".join([*bounds, *([f"at least {self.at_least:g}"] if self.at_least is not None else [])])


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a part found, and what ended it where it did not come to its end."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fault: str = ""
    late: str = ""
    """Which deadline ended it, with the end of its output. It is no verdict on its figures."""
    compiling: bool = True
    """Whether it starts or compiles, which does not count against its deadline."""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it came to its end with every figure within its bounds."""
        return not (self.fault or self.late) and all(figure.holds for figure in self.figures)

    @classmethod
    def read(cls, file: Path) -> "Outcome":
        """Return what was written."""
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return cls(**found | {"figures": [Figure(**one) for one in found["figures"]]})


class Report:
    """Where a part tells what it finds: it is written as it comes, so that nothing is lost where the part ends early."""

    def __init__(self, name: str, file: Path) -> None:
        self.outcome = Outcome(name=name)
        self._file = file
        self._write()

    def figure(
        self, name: str, value: float, unit: str = "", *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Tell a number."""
        figure = Figure(name=name, value=float(value), unit=unit, at_most=at_most, at_least=at_least)
        self.outcome.figures.append(figure)
        self._write()

    def note(self, text: str) -> None:
        """Tell something else worth knowing."""
        self.outcome.notes.append(text)
        self._write()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Stop the clock of the part within the block, whose first calls of kernels compile them."""
        self._clock(stopped=True)
        yield
        self._clock(stopped=False)

    def begin(self) -> None:
        """Start the clock of the part, once it has imported all that it needs."""
        self._clock(stopped=False)

    def _clock(self, *, stopped: bool) -> None:
        self.outcome.compiling = stopped
        self._write()

    def fault(self, text: str) -> None:
        """Tell what ended the part."""
        self.outcome.fault = text
        self._write()

    def _write(self) -> None:
        replace_text(self._file, json.dumps(asdict(self.outcome)))


def replace_text(file: Path, text: str) -> None:
    """Write a file anew, so that it is whole whenever it is read, whatever ends the writer."""
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, file)
