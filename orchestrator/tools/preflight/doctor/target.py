"""The subject of the checks: this machine, and the parts that a run of a configuration would need."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from temper.envs.data.config import DataConfig
from temper.envs.data.hub import cache_alone
from temper.envs.data.rows import is_on_hub
from temper.envs.source import data_of
from temper.learner.models.fresh import byte_tokenizer, hybrid_config
from temper.learner.models.shape import ModelShape, read_shape
from temper.orchestrator.cluster.hardware import this_machine
from temper.orchestrator.cluster.machines import Hardware
from temper.orchestrator.config.text import config_file
from temper.orchestrator.pipeline.config import Config, load_unresolved_config
from temper.orchestrator.pipeline.data_files import has_files, is_complete
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import found_site
from temper.orchestrator.pipeline.estimate.model import planned_model
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.orchestrator.pipeline.start_checks import Start


@dataclass(frozen=True, kw_only=True)
class CheckTarget:
    """A machine and an optional configuration. Each part is computed once."""

    requested: Config | None = None
    fault: Exception | None = None
    """Why a configuration can't be read."""

    @cached_property
    def hardware(self) -> Hardware:
        """This machine."""
        return Hardware(machines=(this_machine(),))

    @property
    def joins(self) -> bool:
        """Whether a run would join a cluster, whose hardware is not this machine's. The cluster is not queried."""
        return "RAY_ADDRESS" in os.environ

    @property
    def folder(self) -> Path:
        """The folder of runs, or its nearest existing parent."""
        wanted = Path.cwd() if self.requested is None else Path(self.requested.runs_dir).resolve()
        return next(folder for folder in (wanted, *wanted.parents) if folder.exists())

    @property
    def config(self) -> Config:
        """The configuration, which must exist."""
        assert self.requested is not None
        return self.requested

    @property
    def to_download(self) -> str:
        """The hub name of a model to download. Empty if no download is needed."""
        source = self.config.model.source
        return "" if source is None or not source.on_hub or is_complete(source) else source.path

    @property
    def to_convert(self) -> Path | None:
        """The GGUF file of a model that a run would convert."""
        source = self.config.model.source
        return None if source is None else source.gguf

    @cached_property
    def model(self) -> Path | None:
        """The model's folder. None for a fresh model. Raise `FileNotFoundError` or `ValueError` if it is not local."""
        source = self.config.model.source
        return None if source is None else source.folder

    @cached_property
    def start(self) -> Start:
        """The same for the checks of a run's start, with all stages ahead."""
        return Start(config=self.config, ahead=self.config.instances, model=self.model)

    @property
    def data_is_here(self) -> bool:
        """Whether all data of a run is on this machine."""
        config = self.config
        stages = [(one.stage, settings) for one in config.instances if (settings := config.settings(one)) is not None]
        data = [each for env in config.environments.values() for each in data_of(env)]
        data += [each for stage, settings in stages if (each := stage.data(settings)) is not None]
        return not any(map(to_download, data))

    @cached_property
    def model_config(self) -> PretrainedConfig:
        """The configuration of the model."""
        if self.model is None:
            return hybrid_config(self.config.model.fresh, byte_tokenizer())
        found: PretrainedConfig = AutoConfig.from_pretrained(self.model, trust_remote_code=False)
        return found

    @cached_property
    def shape(self) -> ModelShape:
        return read_shape(self.model_config, parameters=self.start.parameters)

    @cached_property
    def plan(self) -> Plan:
        """The plan of a run on this machine."""
        model = planned_model(self.config.model, self.config.learner, ema=self.config.keeps_ema)
        return Plan(self.config, model, found_site(self.hardware), Assumptions())


def to_download(data: DataConfig) -> bool:
    """Return whether data would have to be downloaded."""
    return is_on_hub(data) and not has_files(data)


def read_target(path: Path | None, overrides: list[str]) -> CheckTarget:
    """Return this machine with the configuration of a file or a run's folder, or the machine only.

    The profile is resolved for this machine. If the model cannot be read, nothing is resolved, and the model check reports the
    reason. Nothing is downloaded, and no cluster is joined. Raise `FileNotFoundError` if the file does not exist.
    """
    if path is None:
        return CheckTarget()
    file = path / "config.yaml" if path.is_dir() else config_file(path)
    if not file.is_file():
        raise FileNotFoundError(f"no configuration file {file}; use a YAML file or a run's folder")
    try:
        with cache_alone():
            unsettled = load_unresolved_config(file, overrides)
            try:
                return CheckTarget(
                    requested=load_resolved_config(
                        file, overrides, ask=lambda: Hardware(machines=(this_machine(),)), convert=False
                    )
                )
            except (ValueError, OSError):
                return CheckTarget(requested=unsettled)
    except (ValueError, OSError) as error:
        return CheckTarget(fault=error)
