"""The stage `eval`, which `run_eval.py` runs."""

from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.fitting import check_budget_fits, check_sampling
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, defer_import


def _fits(config: EvalConfig, run: RunConfig, name: str) -> None:
    check_budget_fits(max(config.budgets, default=None), run.rollout, config.sampling)
    check_sampling(name, config.sampling, run.rollout)


STAGE = Stage(
    name="eval",
    role=Role.EVALUATE,
    settings=EvalConfig,
    run=defer_import("temper.orchestrator.stages.run_eval", "run_eval"),
    first_ticket=TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.limits_thinking,
    samples_without_thinking=lambda config: config.no_thinking,
    fits=_fits,
    check=lambda config, start: start.heldout_tasks(config.tasks and 1),
)
