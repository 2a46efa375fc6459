"""The stage `rft`, which `run_rft.py` runs."""

from temper.orchestrator.config.fitting import fit_sampled_data
from temper.orchestrator.config.supervised import RftConfig
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, defer_import

STAGE = Stage(
    name="rft",
    role=Role.TRAIN,
    settings=RftConfig,
    run=defer_import("temper.orchestrator.stages.run_rft", "run_rft"),
    first_ticket=2 * TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0,
    fits=fit_sampled_data,
    check=lambda config, start: start.training_tasks(config.shares),
)
