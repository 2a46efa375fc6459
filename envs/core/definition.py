"""The definition of an environment: its class, its tasks and their solutions."""

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
"""Highest mean reward that one fixed answer to all tasks may earn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvDefinition:
    """One environment. Missing parts are None or empty.

    `generate(rng, level)` makes a task, `formats` read rows of data, and `demonstrate` solves a generated task with
    thinking. `reference(task)` returns the turns of a right answer (texts, thinking off) and raises `ValueError` if the
    task has none. `negatives(task)` yields named wrong answers for `temper env check`.
    """

    id: str
    entry_point: str
    """The `gymnasium.Env`, as `module:Class`."""
    generate: Callable[[random.Random, int], Task] | None = None
    levels: int | None = None
    """Number of levels of generated tasks, from 1 for the easiest. None means no upper limit."""
    formats: tuple[RowFormat, ...] = ()
    demonstrate: Callable[[Task], list[Message]] | None = None
    reference: Callable[[Task], list[str]] | None = None
    negatives: Callable[[Task], Iterator[tuple[str, list[str]]]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Plain data that selects a member of a family. Tasks carry it."""
    configure: Callable[[Mapping[str, Any]], "EnvDefinition"] | None = None
    """For a family of environments: returns the member for `envs.NAME.options`. Raises `ValueError` for wrong options."""
    in_folder: Callable[[Path], "EnvDefinition"] | None = None
    """For rows that need companion files: returns the environment that reads them from the folder of the data file."""
    companions: tuple[str, ...] = ()
    """Names of the companion files."""
    parts: tuple[str, ...] = PARTS
    """The reward parts that it returns, which `envs.NAME.weights` may weigh."""
    max_turns: int | None = None
    """Turn limit of an episode if the run sets no `envs.NAME.max_turns`. None sets none."""
    chance: float | None = None
    """Highest mean reward of one fixed answer, for tasks with few different answers. None is `USUAL_CHANCE`."""
    judges_form: bool = False
    """Whether any text of the right form is right, regardless of its content."""
    runs_programs: bool = False
    """Whether it executes model-written programs in the sandbox."""
    agent: str | None = None
    """The agent that plays its episodes, as `module.function`, if the run sets none. None lets the model answer."""
    replays: bool = True
    """Whether the same turns lead a new environment to the same state. If not, an interrupted episode restarts from its
    first turn.
    """

    def ref(self, name: str = "", settings: EnvSettings | None = None) -> EnvRef:
        """Return the reference that its tasks carry, by default with its id and its turn limit."""
        own = settings or EnvSettings(max_turns=self.max_turns)
        return EnvRef(
            name=name or self.id, entry_point=self.entry_point, options=self.options, settings=own, replays=self.replays
        )
