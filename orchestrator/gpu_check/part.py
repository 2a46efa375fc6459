"""The parts of the check, and what one finds: figures, some with a bound, and notes."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the check: one file beside this one, with a function `run(report, small=...)`."""

    name: str
    """That of its module."""
    title: str
    seconds: float
    """Deadline."""
    vllm: bool = True
    """Whether it needs vLLM, DeepSpeed or Ray, beside torch and transformers."""


PARTS = (
    Part(name="kernels", title="Kernels of Mamba-2 against the definition", seconds=90, vllm=False),
    Part(name="shared_prompts", title="Shared prompts, with layers computed again and without", seconds=90, vllm=False),
    Part(name="first_runner", title="vLLM's first model runner", seconds=180),
    Part(name="second_runner", title="vLLM's second model runner", seconds=220),
    Part(name="pushes", title="Each way of pushing weights", seconds=110),
    Part(name="learning", title="The learner: a hybrid of 1 B parameters at ZeRO stage 3", seconds=110),
    Part(name="sharing", title="One GPU shared by engine and learner", seconds=100),
)
"""In the order in which they run. Together they have 15 minutes."""


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
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it came to its end with every figure within its bounds."""
        return not self.fault and all(figure.holds for figure in self.figures)

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
