"""The stage `sft`, which `run_sft.py` runs."""

from temper.orchestrator.config.fitting import fit_supervised
from temper.orchestrator.config.supervised import SftConfig
from temper.orchestrator.stages.stage import Role, Stage, defer_import


def _samples_without_thinking(config: SftConfig) -> bool:
    mix = config.reasoning.thinking  # by default there are such samples only if the model supports them
    return mix is not None and mix.no_thinking > 0


STAGE = Stage(
    name="sft",
    role=Role.TRAIN,
    settings=SftConfig,
    run=defer_import("temper.orchestrator.stages.run_sft", "run_sft"),
    samples_without_thinking=_samples_without_thinking,
    data=lambda config: config.data,
    fits=fit_supervised,
    check=defer_import("temper.orchestrator.stages.run_sft", "check_sft"),
)
