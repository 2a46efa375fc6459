"""Stages that sample answers in one go: how long they wait for them."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from test_orchestrator_reporting_budget_curve import EVALUATION, RolloutPool, done

from orchestrator.deadline import StuckError
from orchestrator.evaluation.exam import EvalConfig
from orchestrator.pipeline.config import Config
from orchestrator.pipeline.stage_list import single_instance
from orchestrator.session.run import Run
from orchestrator.stages import self_sft
from orchestrator.stages.answer_sampling import sample_once
from orchestrator.stages.eval import evaluate
from orchestrator.stages.self_sft import SelfSftConfig
from rollout.trajectory import Group, Ticket

Sampling = Callable[[Run, Config], Coroutine[Any, Any, Path]]


class Slow(RolloutPool):
    """Answers after twice the deadline, and says when a worker took the place of another one."""

    def __init__(self, healed: Callable[[], float]) -> None:
        super().__init__()
        self.healed = healed

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        await asyncio.sleep(1.0)
        return await super().run_group(ticket, samples)


async def evaluation(run: Run, config: Config) -> Path:
    return await evaluate(run, config.section(EvalConfig), EVALUATION)


async def own_answers(run: Run, config: Config) -> Path:
    return await sample_once(
        run,
        config.section(SelfSftConfig),
        single_instance(self_sft.STAGE).mixture(config, {}),
        instance=single_instance(self_sft.STAGE),
        lines=lambda draw, group: ["an answer"],
        wanted="right answers",
    )


@pytest.mark.parametrize("sampling", [evaluation, own_answers])
def test_answers_are_waited_for_anew_while_workers_are_replaced(tmp_path: Path, sampling: Sampling) -> None:
    settings = ["eval.timeout_s=0.5", "self_sft.timeout_s=0.5", "self_sft.tasks=2"]

    def ended(place: Path, healed: Callable[[], float]) -> Path:
        pool = Slow(healed)

        async def stage(run: Run, config: Config) -> Path:
            run.engines.pool = pool  # type: ignore[assignment]
            return await sampling(run, config)

        return done(place, stage, *settings, pool=pool)[0]

    with pytest.raises(StuckError, match=r"answers; .* with a longer (eval|self_sft)\.timeout_s"):
        ended(tmp_path / "dead", lambda: 0.0)
    assert ended(tmp_path / "healed", time.monotonic).exists()
