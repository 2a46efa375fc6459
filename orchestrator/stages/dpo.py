"""The stage `dpo`, which `run_dpo.py` runs."""

from temper.orchestrator.config.fitting import fit_sampled_data
from temper.orchestrator.config.supervised import DpoConfig
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, defer_import

STAGE = Stage(
    name="dpo",
    role=Role.TRAIN,
    settings=DpoConfig,
    run=defer_import("temper.orchestrator.stages.run_dpo", "run_dpo"),
    first_ticket=4 * TICKETS,
    plays=lambda config: config.data is None,
    data=lambda config: config.data,
    fits=fit_sampled_data,
    check=defer_import("temper.orchestrator.stages.run_dpo", "check_dpo"),
)
