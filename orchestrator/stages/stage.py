"""What a stage is: one value says all of it, and what the list of stages decides elsewhere is read from these values."""

import hashlib
import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from transformers import PreTrainedTokenizerBase

from temper.envs.core.thinking_mode import ThinkingMix
from temper.envs.data.config import DataConfig
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.evaluation.evaluator import heldout_tasks
from temper.orchestrator.loop.mixture import Mixture, open_mixture
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.registry import HELP, MODULES

S = TypeVar("S")
"""The settings of a stage; None for a stage without any."""
TICKETS = 10**9
"""Distance between the first tickets of stages: the seeds of an episode derive from its ticket, and no two share any."""


class Role(Enum):
    """What a stage is to a run."""

    BEGIN = "begin"  # makes the first model: stands first, once
    TRAIN = "train"  # makes a new model of the newest one, in steps
    EVALUATE = "evaluate"  # measures the newest model, whose name is part of its own
    REPORT = "report"  # writes what is known, again after whatever was added; needs no model


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheck:
    """What is known of a run before its first stage, for a stage to check what it will need."""

    config: RunConfig
    name: str
    tokenizer: PreTrainedTokenizerBase
    longest: int | None

    def training_tasks(self, shares: dict[str, float]) -> Mixture:
        """Open the mixture over the training tasks, which reads every row of data."""
        return open_mixture(self.config.environments, shares, split="train", seed=self.config.seed)

    def loop_tasks(self, config: LoopConfig) -> None:
        """Open the training tasks of a loop, and held-out ones if it evaluates between steps."""
        self.training_tasks(config.shares)
        if config.eval_every:
            heldout_tasks(self.config, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[S]):
    """A kind of stage. An entry of `stages` in the configuration makes an instance of it."""

    name: str
    """That of its module, of its line in the registry, and of its section of the configuration."""
    role: Role
    run: "Callable[[Run, S, StageInstance], Awaitable[Path | None]]"
    """Do the work with the settings of an instance; the model that it leaves becomes the newest one of the run."""
    settings: type[S] | None = None
    """The dataclass of its settings, which has `steps` and `optim` where the stage trains."""
    first_ticket: int | None = None
    """Where the tickets of its episodes begin, a multiple of `TICKETS` of its own; None where it never plays any."""
    plays: Callable[[S], bool] = lambda settings: False
    """Whether it plays episodes, for which it needs the engines."""
    limits_thinking: Callable[[S], bool] = lambda settings: False
    """Whether it closes thoughts at a budget."""
    samples_without_thinking: Callable[[S], bool] = lambda settings: False
    """Whether it switches thinking off."""
    models: Callable[[S], dict[str, ModelSource | None]] = lambda settings: {}
    """The settings that name a model, whose content belongs to what a run is."""
    data: Callable[[S], DataConfig | None] = lambda settings: None
    """Its setting `data`, the rows that it trains on, whose content belongs to what a run is too."""
    fits: Callable[[S, RunConfig, str], None] = lambda settings, config, name: None
    """Raise `ValueError` where its settings do not go with the rest of the configuration, where `stages` lists it."""
    requires: Callable[[S], object] = lambda settings: None
    """Raise `ValueError` where it could not run with its settings, where `stages` lists it."""
    check: Callable[[S, StartCheck], object] = lambda settings, start: None
    """Read what it will read. Raise `FileNotFoundError` or `ValueError` where that is missing or malformed."""

    @property
    def trains(self) -> bool:
        return self.role is Role.TRAIN

    @property
    def makes(self) -> bool:
        return self.role in (Role.BEGIN, Role.TRAIN)

    def takes_tasks(self, settings: S) -> bool:
        """Return whether it takes tasks of the environments: it plays episodes, or trains and has no rows of its own."""
        return self.plays(settings) or (self.trains and self.data(settings) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInstance:
    """An entry of `stages`: a stage, under a name and with settings of its own where it has some."""

    stage: Stage[Any]
    name: str
    """What its files and metrics are called."""
    overrides: Mapping[str, Any]
    """The settings that its entry gives, over those of its stage."""
    about: str | None = None
    """Of an evaluation that has no name of its own: the instance whose model it evaluates."""

    def mixture(self, config: RunConfig, shares: dict[str, float], thinking: ThinkingMix | None = None) -> Mixture:
        return open_mixture(config.environments, shares, split="train", seed=self.seed(config.seed), thinking=thinking)

    def seed(self, seed: int) -> int:
        """Derive its seed from the run's: a further instance of a stage sees other tasks in another order."""
        if self.name == self.stage.name:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed}/{self.name}".encode()).digest()[:6], "big")

    @property
    def first_ticket(self) -> int:
        assert self.stage.first_ticket is not None, f"the stage {self.stage.name} declares no first_ticket"
        return self.stage.first_ticket


@cache
def all_stages() -> dict[str, Stage[Any]]:
    stages = {name: _declared(name) for name in HELP}
    tickets = [stage.first_ticket for stage in stages.values() if stage.first_ticket is not None]
    assert len(set(tickets)) == len(tickets), f"two stages have the same first_ticket: {sorted(tickets)}"
    return stages


def _declared(name: str) -> Stage[Any]:
    module = MODULES.get(name, f"temper.orchestrator.stages.{name}")
    stage = vars(importlib.import_module(module)).get("STAGE")
    assert isinstance(stage, Stage), f"{module} declares no STAGE"
    assert stage.name == name, f"{module} declares a stage {stage.name}"
    return stage
