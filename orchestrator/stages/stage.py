"""The definition of a stage. All other code derives from the stages in `registry.py`."""

import hashlib
import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from temper.envs.core.thinking_mode import ThinkingMix
from temper.envs.data.config import DataConfig
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.run_config import RunConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from temper.orchestrator.loop.mixture import Mixture
    from temper.orchestrator.session.run import Run

S = TypeVar("S")
"""Settings of a stage; None for a stage without any."""
TICKETS = 10**9
"""Distance between the first tickets of stages. Seeds derive from tickets, so no two stages share any."""


class Role(Enum):
    """The role of a stage in a run."""

    BEGIN = "begin"  # creates the first model; comes first, once
    TRAIN = "train"  # trains the newest model into a new one, in steps
    EVALUATE = "evaluate"  # measures the newest model, which is part of the instance's name
    REPORT = "report"  # writes the results, again after each addition; needs no model


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheck:
    """Facts about a run before its first stage, for the checks of a stage."""

    config: RunConfig
    name: str
    tokenizer: "PreTrainedTokenizerBase"
    longest: int | None

    def training_tasks(self, shares: dict[str, float]) -> "Mixture":
        """Open the mixture over the training tasks, which reads every row of data."""
        from temper.orchestrator.loop.mixture import open_mixture  # imports slowly

        return open_mixture(self.config.environments, shares, split="train", seed=self.config.seed)

    def loop_tasks(self, config: LoopConfig) -> None:
        """Open the training tasks of a loop, and held-out ones if it evaluates between steps."""
        self.training_tasks(config.shares)
        if config.eval_every:
            self.heldout_tasks(1)

    def heldout_tasks(self, tasks: int | None) -> None:
        """Open the held-out tasks of each environment."""
        from temper.orchestrator.evaluation.evaluator import heldout_tasks  # imports torch and Ray

        heldout_tasks(self.config, tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[S]):
    """A kind of stage. An entry of `stages` in the configuration makes an instance of it."""

    name: str
    """Name of its module, and of its section of the configuration."""
    help: str
    """Its work in a line for the command line."""
    role: Role
    run: "Callable[[Run, S, StageInstance], Awaitable[Path | None]]"
    """Run an instance with its settings. The returned model becomes the newest one of the run."""
    settings: type[S] | None = None
    """The dataclass of its settings, with `steps` and `optim` if the stage trains."""
    first_ticket: int | None = None
    """First ticket of its episodes, a unique multiple of `TICKETS`; None for a stage without episodes."""
    plays: Callable[[S], bool] = lambda settings: False
    """Whether it runs episodes, which need the engines."""
    limits_thinking: Callable[[S], bool] = lambda settings: False
    """Whether it ends reasoning at a budget."""
    samples_without_thinking: Callable[[S], bool] = lambda settings: False
    """Whether it samples with thinking off."""
    models: Callable[[S], dict[str, ModelSource | None]] = lambda settings: {}
    """Its settings that name a model. Their content identifies the run."""
    data: Callable[[S], DataConfig | None] = lambda settings: None
    """Its setting `data` with training rows. Their content identifies the run."""
    fits: Callable[[S, RunConfig, str], None] = lambda settings, config, name: None
    """Raise `ValueError` if it cannot run with its settings, or if they conflict with the rest of the configuration."""
    check: Callable[[S, StartCheck], object] = lambda settings, start: None
    """Read its inputs. Raise `FileNotFoundError` or `ValueError` for missing or malformed ones."""

    @property
    def trains(self) -> bool:
        return self.role is Role.TRAIN

    @property
    def makes(self) -> bool:
        return self.role in (Role.BEGIN, Role.TRAIN)

    def takes_tasks(self, settings: S) -> bool:
        """Return whether it needs tasks of the environments: for episodes, or for training without rows."""
        return self.plays(settings) or (self.trains and self.data(settings) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInstance:
    """An entry of `stages`: a stage with a name and overrides of its settings."""

    stage: Stage[Any]
    name: str
    """Name in files and metrics."""
    overrides: Mapping[str, Any]
    """The entry's settings, which override the settings of its stage."""
    about: str | None = None
    """For an unnamed evaluation: the instance whose model it evaluates."""

    def mixture(self, config: RunConfig, shares: dict[str, float], thinking: ThinkingMix | None = None) -> "Mixture":
        from temper.orchestrator.loop.mixture import open_mixture  # imports slowly

        return open_mixture(config.environments, shares, split="train", seed=self.seed(config.seed), thinking=thinking)

    def seed(self, seed: int) -> int:
        """Derive the seed from the run's. A further instance of a stage has other tasks in another order."""
        if self.name == self.stage.name:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed}/{self.name}".encode()).digest()[:6], "big")

    @property
    def first_ticket(self) -> int:
        assert self.stage.first_ticket is not None, f"the stage {self.stage.name} declares no first_ticket"
        return self.stage.first_ticket


def defer_import(module: str, function: str) -> Callable[..., Any]:
    """Return a function that is imported when it is called, so that settings are read without torch, vLLM and Ray."""
    return lambda *given: getattr(importlib.import_module(module), function)(*given)
