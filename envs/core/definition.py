"""What an environment is: how it is made, where its tasks come from, who solves them."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temper.envs.core.row_format import RowFormat
from temper.envs.core.task import EnvRef, EnvSettings, Message, Task

PARTS = ("correct", "format", "length")
"""The reward parts that every environment gives."""
USUAL_CHANCE = 0.3
"""Most that one answer to every task may earn, on average over the tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvDefinition:
    """One environment. What it does not have is None, or empty.

    `generate(rng, level)` makes a task, `formats` read rows of data, `demonstrate` solves a generated task with a
    thought. `reference(task)` gives the model's turns of a right answer (texts, thinking off; ValueError if the task
    holds none) and `negatives(task)` named wrong ones, for `temper env check`.
    """

    id: str
    entry_point: str
    """The `gymnasium.Env`, as `module:Class`."""
    generate: Callable[[random.Random, int], Task] | None = None
    levels: int | None = None
    """How many levels its generated tasks have, of which 1 is the easiest, or None if there is no hardest."""
    formats: tuple[RowFormat, ...] = ()
    demonstrate: Callable[[Task], list[Message]] | None = None
    reference: Callable[[Task], list[str]] | None = None
    negatives: Callable[[Task], Iterator[tuple[str, list[str]]]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Which member of a family it is: plain data for its tasks to carry to where they are played."""
    configure: Callable[[Mapping[str, Any]], "EnvDefinition"] | None = None
    """For a family of environments: the member that `envs.NAME.options` chooses; ValueError for wrong options."""
    in_folder: Callable[[Path], "EnvDefinition"] | None = None
    """For rows that need further files: the environment that finds these in the folder of the data file."""
    companions: tuple[str, ...] = ()
    """Names of those files."""
    parts: tuple[str, ...] = PARTS
    """The reward parts that it gives, which `envs.NAME.weights` may weigh."""
    max_turns: int | None = None
    """Most turns of an episode where the run sets no `envs.NAME.max_turns`, or None if the environment does not say."""
    chance: float | None = None
    """Most that one answer to every task may earn, if the tasks have few different answers. None is `USUAL_CHANCE`."""
    judges_form: bool = False
    """Whether every text of the right form is right, regardless of its content."""
    runs_programs: bool = False
    """Whether it executes programs that the model wrote, in the sandbox."""
    replays: bool = True
    """Whether the same turns bring a new environment to the same place; without it an episode that a fault interrupts begins
    again from its first turn."""

    def ref(self, name: str = "", settings: EnvSettings | None = None) -> EnvRef:
        """Return the reference that its tasks carry: by default under its own id, with settings of its own."""
        own = settings or EnvSettings(max_turns=self.max_turns)
        return EnvRef(
            name=name or self.id, entry_point=self.entry_point, options=self.options, settings=own, replays=self.replays
        )
