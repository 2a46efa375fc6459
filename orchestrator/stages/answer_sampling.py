"""What a model answers before a stage trains on it: sampled once, written to a file whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from temper.envs.core.task import Task
from temper.orchestrator.loop.deadline import Deadline, in_thread, together, within
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.run.folder import write_whole
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.sampling import Sampling
from temper.rollout.trajectory import Group, Ticket, WeightVersion

WAVE = 64
"""Groups that are sampled at once."""


class Asking(Protocol):
    """What is asked, and how: tasks, answers to each and how they are drawn, the deadline of a wave in seconds, the highest
    share of failures.
    """

    @property
    def tasks(self) -> int: ...

    @property
    def samples(self) -> int: ...

    @property
    def sampling(self) -> Sampling: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def max_failures(self) -> float: ...


async def sample_once(
    run: Run,
    asking: Asking,
    mixture: Mixture,
    *,
    instance: StageInstance,
    lines: Callable[[Draw, Group], list[str]],
    wanted: str,
) -> Path:
    """Return the file with the `lines` of each group of answers of the run's newest model; made if there is none yet.

    `wanted` names a line. Raise `ValueError` if there is none, `TooManyFailures` if too many answers fail outside the model.
    """
    name = instance.name
    path = run.folder.sampled(name)
    if path.exists():
        return path
    pool = await run.engines.serving(run.model_dir, who=name)
    draws = [mixture.draw() for _ in range(asking.tasks)]
    kept: list[str] = []
    watch = FailureWatch(asking.max_failures, setting=f"{name}.max_failures")
    limit = Deadline(seconds=asking.timeout_s, setting=f"{name}.timeout_s")
    async with run.supervision.sampling(name, asked=len(draws) * asking.samples) as count:

        async def answered(ticket: Ticket) -> Group:
            group = await watch.on(pool.run_group(ticket, asking.samples))
            count.add(group)
            return group

        for first in range(0, len(draws), WAVE):
            wave = draws[first : first + WAVE]
            making = within(limit, in_thread(_made, mixture, wave), stage=name, waiting_for="its tasks to be made")
            tasks = await run.stop.wait_or(making)
            tickets = _tickets(tasks, instance.first_ticket + first, admitted=run.version, sampling=asking.sampling)
            answering, healed = together(map(answered, tickets)), run.engines.healed
            waiting = within(limit, answering, stage=name, waiting_for="the model's own answers", healed=healed)
            groups = await run.stop.wait_or(waiting)
            kept += [line for draw, group in zip(wave, groups, strict=True) for line in lines(draw, group)]
            run.progress.note(f"{name}: {first + len(wave)} of {len(draws)} tasks, {len(kept)} {wanted}")
    watch.conclude()
    if not kept:
        raise ValueError(
            f"{name}: {len(draws)} tasks gave no {wanted}; train the model first (sft), or raise {name}.tasks or "
            f"{name}.samples"
        )
    write_whole(path, "\n".join(kept) + "\n")
    return path


def require_own_answers(stage: str, sampling: Sampling, *, samples: int) -> None:
    """Raise `ValueError` for sampling of which nothing can be learnt by imitating answers or telling them apart.

    Their distribution is not trained on, so it may be truncated.
    """
    if sampling.greedy and samples > 1:
        raise ValueError(
            f"{stage}.sampling.temperature=0 with {stage}.samples={samples}: all answers to a task would be the same; set "
            f"the temperature above 0"
        )
    if sampling.stop:
        raise ValueError(
            f"{stage}.sampling.stop={sampling.stop}: the answers that are trained on would end with such a text, and not with "
            f"the end of the turn, which the model would unlearn; leave it out"
        )


def _tickets(tasks: list[Task], first: int, *, admitted: WeightVersion, sampling: Sampling) -> list[Ticket]:
    return [
        Ticket(number=first + place, task=task, admitted=admitted, sampling=sampling)
        for place, task in enumerate(tasks)
    ]


def _made(mixture: Mixture, draws: list[Draw]) -> list[Task]:
    return [mixture.task(draw) for draw in draws]
