"""A configuration file with all that a run would have of it: what it gives, what its profile chooses, defaults.

What does not go together is shown too, so that a configuration which a run refuses can be looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from temper.orchestrator.config.chosen import ChosenConfig
from temper.orchestrator.config.run_config import USUAL_STAGES
from temper.orchestrator.config.text import is_file, merged, overridden, require_secrets, resolved, values, yaml_text
from temper.orchestrator.pipeline.config import SCHEMA, as_file, make_config, shown_text, with_presets
from temper.orchestrator.pipeline.profiles.asked import Given
from temper.orchestrator.pipeline.profiles.settled import chosen_in, model_in, settled
from temper.orchestrator.pipeline.stage_list import instances
from temper.orchestrator.stages.stage import StageInstance

COMMAND_LINE = "the command line"


@dataclass(frozen=True, kw_only=True)
class ResolvedFile:
    """A configuration file, with further files and settings on top of it."""

    path: Path
    layers: tuple[tuple[str, Given], ...]
    """What each override gives, with the name of the file that it is, or of the command line; later ones win."""
    given: Given
    """What it gives, with the overrides."""
    whole: Given
    """The same with what the profile chooses, and with the settings of standard sets."""
    note: str
    """What a run would have beside it, in words; "" where that is all."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """All values by key, without secrets; those of an instance of a stage stand under its name too."""
        shared = values(SCHEMA, self.whole)
        own = {one.name: merged(shared.get(one.stage.name, {}), one.given) for one in self.instances}
        return {**shared, **own}

    @cached_property
    def instances(self) -> list[StageInstance]:
        """The stages that it lists, each with its name."""
        return instances(self.given.get("stages") or USUAL_STAGES)

    @cached_property
    def chosen(self) -> ChosenConfig:
        """What the profile chose."""
        return chosen_in(self.whole)


def resolve(path: Path, overrides: list[str], *, settles: bool = True) -> ResolvedFile:
    """Return a file, or the `config.yaml` of a run's folder, with all that a run would have; unless it `settles` without what
    the profile chooses, for which cluster and model are looked at.

    The profile chooses for the model too: where that would have to be downloaded nothing is chosen, which `note` says.
    Secrets that were blanked stay so.
    Raise `FileNotFoundError` or `ValueError` for a file that is none, or of which a key or a type is wrong.
    """
    file = path / "config.yaml" if path.is_dir() else path
    given = shown_text(file, overrides)
    missing = "" if "chosen" in given else _model_to_download(given)
    note = ""
    if missing:
        note = (
            f"what the profile chooses goes by the model and is not in it: {missing} is not on this machine "
            f"(`hf download {missing}`)"
        )
    whole = with_presets(given if missing or not settles else settled(given))
    layers = tuple((one if is_file(one) else COMMAND_LINE, overridden({}, [one])) for one in overrides)
    return ResolvedFile(path=file, layers=layers, given=given, whole=whole, note=note)


def resolved_yaml(file: ResolvedFile) -> str:
    """Return all that a run would have as YAML without secrets, which can be run.

    Raise `ValueError` where a run would refuse it, and where what it would have is not known without the model.
    """
    require_secrets(file.given, file.path)
    if file.note:
        raise ValueError(file.note)
    return yaml_text(as_file(make_config(file.whole)))


def _model_to_download(given: Given) -> str:
    """Return the name of the model where it would have to be downloaded, else ""."""
    model = resolved(given).get("model")
    config = model_in({"model": model} if isinstance(model, Mapping) else {})
    return "" if config.source is None or config.source.is_here else config.source.path
