"""The list of stages. It imports no heavy library, since every command reads it.

To add a stage, write `orchestrator/stages/NAME.py` with its work, a dataclass of its settings in `orchestrator/config/`, and a
`Stage` here (see `orchestrator/stages/stage.py`). Its command, `make NAME`, its section of the configuration and its checks
follow.
"""

from functools import cache
from typing import Any

from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.fitting import (
    check_budget_fits,
    check_sampling,
    fit_loop,
    fit_sampled_data,
    fit_supervised,
)
from temper.orchestrator.config.loop import DistillConfig, RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.config.supervised import DpoConfig, RftConfig, SftConfig
from temper.orchestrator.loop.config import require_buffer_fits
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, defer_import

INIT: Stage[Any] = Stage(
    name="init",
    help="use the model of model.path, or create a fresh one",
    role=Role.BEGIN,
    run=defer_import("temper.orchestrator.stages.init", "run_init"),
)


def _sft_skips_thinking(config: SftConfig) -> bool:
    mix = config.reasoning.thinking  # by default there are such samples only if the model supports them
    return mix is not None and mix.no_thinking > 0


SFT = Stage(
    name="sft",
    help="supervised fine-tuning",
    role=Role.TRAIN,
    settings=SftConfig,
    run=defer_import("temper.orchestrator.stages.sft", "run_sft"),
    samples_without_thinking=_sft_skips_thinking,
    data=lambda config: config.data,
    fits=fit_supervised,
    check=defer_import("temper.orchestrator.stages.sft", "check_sft"),
)
RFT = Stage(
    name="rft",
    help="supervised fine-tuning on the model's own right answers",
    role=Role.TRAIN,
    settings=RftConfig,
    run=defer_import("temper.orchestrator.stages.rft", "run_rft"),
    first_ticket=2 * TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0,
    fits=fit_sampled_data,
    check=lambda config, start: start.training_tasks(config.shares),
)
DPO = Stage(
    name="dpo",
    help="direct preference optimisation on pairs of answers",
    role=Role.TRAIN,
    settings=DpoConfig,
    run=defer_import("temper.orchestrator.stages.dpo", "run_dpo"),
    first_ticket=4 * TICKETS,
    plays=lambda config: config.data is None,
    data=lambda config: config.data,
    fits=fit_sampled_data,
    check=defer_import("temper.orchestrator.stages.dpo", "check_dpo"),
)


def _fit_rl(config: RlConfig, run: RunConfig, name: str) -> None:
    if config.thinking.nested_budgets and run.rollout.thinking.announce:
        raise ValueError(
            f"{name}.thinking.nested_budgets={config.thinking.nested_budgets} with rollout.thinking.announce=true: a budget in "
            f"the prompt would change the reasoning before it; leave one of them out"
        )
    comparing = [env for env, one in run.envs.items() if one.judge is not None and one.judge.compare]
    if config.thinking.nested_budgets and comparing:
        raise ValueError(
            f"{name}.thinking.nested_budgets={config.thinking.nested_budgets} with envs.{comparing[0]}.judge.compare=true: "
            f"forced answers have no comparison; leave one of them out"
        )
    require_buffer_fits(config.shaping, turn_tokens=run.rollout.limits.turn_tokens)
    fit_loop(config, run, name)


RL = Stage(
    name="rl",
    help="reinforcement learning",
    role=Role.TRAIN,
    settings=RlConfig,
    run=defer_import("temper.orchestrator.stages.rl", "run_rl"),
    first_ticket=0,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0 or bool(config.thinking.nested_budgets),
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    fits=_fit_rl,
    check=lambda config, start: start.loop_tasks(config),
)


def _fit_distill(config: DistillConfig, run: RunConfig, name: str) -> None:
    """Raise as `fit_loop`, and for a missing teacher. The start of a run checks one on the hub."""
    fit_loop(config, run, name)
    if config.teacher is None or not config.teacher.on_hub:
        config.teacher_dir()


DISTILL = Stage(
    name="distill",
    help="on-policy distillation from a teacher",
    role=Role.TRAIN,
    settings=DistillConfig,
    run=defer_import("temper.orchestrator.stages.distill", "run_distill"),
    first_ticket=3 * TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0,
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    models=lambda config: {"teacher": config.teacher},
    fits=_fit_distill,
    check=defer_import("temper.orchestrator.stages.distill", "check_distill"),
)


def _fit_eval(config: EvalConfig, run: RunConfig, name: str) -> None:
    check_budget_fits(max(config.budgets, default=None), run.rollout, config.sampling)
    check_sampling(name, config.sampling, run.rollout)


EVAL = Stage(
    name="eval",
    help="evaluate a run's newest model, or any model, on held-out tasks",
    role=Role.EVALUATE,
    settings=EvalConfig,
    run=defer_import("temper.orchestrator.stages.eval", "run_eval"),
    first_ticket=TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.limits_thinking,
    samples_without_thinking=lambda config: config.no_thinking,
    fits=_fit_eval,
    check=lambda config, start: start.heldout_tasks(config.tasks and 1),
)
REPORT: Stage[Any] = Stage(
    name="report",
    help="write report.html and report.json",
    role=Role.REPORT,
    run=defer_import("temper.orchestrator.tools.inspect.report.run_report", "run_report"),
)
STAGES: tuple[Stage[Any], ...] = (INIT, SFT, RFT, DPO, RL, DISTILL, EVAL, REPORT)


@cache
def all_stages() -> dict[str, Stage[Any]]:
    """Return the stages by name."""
    tickets = [stage.first_ticket for stage in STAGES if stage.first_ticket is not None]
    assert len(set(tickets)) == len(tickets), f"two stages have the same first_ticket: {sorted(tickets)}"
    return {stage.name: stage for stage in STAGES}
