"""`self_sft`: supervised fine-tuning on the model's own right answers, a share of their thoughts cut at a budget.

Semi-on-policy: the answers are sampled once, from the model that the stage starts with.
"""

import asyncio
import os
from pathlib import Path

from orchestrator.deadline import within
from orchestrator.mixture import Mixture
from orchestrator.own_answers import OwnAnswers, answer_line, read_answers, usable
from orchestrator.run import Run
from orchestrator.supervised import train_supervised
from rollout.renderer import Renderer, load_tokenizer
from rollout.thought import ThoughtTags
from rollout.trajectory import Group, Ticket

STAGE = "self_sft"
TICKETS = 2 * 10**9
"""Tickets of this stage start here, so that their seeds are those of no other stage."""
WAVE = 64
"""Groups that are sampled at once."""


async def run_self_sft(run: Run) -> Path:
    """Sample where that is not done, then train for `self_sft.steps`; returns the checkpoint of the last step."""
    config = run.config.self_sft
    mixture = run.mixture(config.shares)
    path = run.folder.root / f"{STAGE}.jsonl"
    if not path.exists():
        await _sample(run, mixture, path)
    tokenizer, thought = load_tokenizer(run.model_dir), run.config.rollout.thought
    answers = OwnAnswers(
        read_answers(path),
        mixture,
        Renderer(tokenizer, thought),
        ThoughtTags(tokenizer, closing=thought.closing),
        config,
        thought=thought,
        max_tokens=run.config.rollout.limits.total_tokens,
        seed=run.config.seed,
    )
    return await train_supervised(
        run,
        stage=STAGE,
        optim=config.optim,
        steps=config.steps,
        checkpoint_every=config.checkpoint_every,
        batch=answers.batch,
    )


async def _sample(run: Run, mixture: Mixture, path: Path) -> None:
    """Answer `tasks` tasks and write the right answers, whole or not at all."""
    config = run.config.self_sft
    fleet = await run.serving(run.model_dir, stage=STAGE)
    draws = [mixture.draw() for _ in range(config.tasks)]
    kept: list[str] = []
    for first in range(0, len(draws), WAVE):
        wave = draws[first : first + WAVE]
        tickets = [
            Ticket(number=TICKETS + first + place, task=mixture.task(draw), admitted=run.version)
            for place, draw in enumerate(wave)
        ]
        answering = asyncio.gather(*(fleet.run_group(ticket, config.samples) for ticket in tickets))
        groups: list[Group] = await run.stop.wait_or(
            within(config.timeout_s, answering, stage=STAGE, waiting_for=lambda: "the model's own answers")
        )
        for draw, group in zip(wave, groups, strict=True):
            kept += [answer_line(draw, trajectory) for trajectory in group.trajectories if usable(trajectory)]
        run.progress.note(f"{STAGE}: {first + len(wave)} of {len(draws)} tasks, {len(kept)} right answers")
    if not kept:
        raise ValueError(
            f"{STAGE}: the model answered none of {len(draws)} tasks right; train it first (sft), or raise self_sft.tasks"
        )
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(kept) + "\n", encoding="utf-8")
    os.replace(temporary, path)
