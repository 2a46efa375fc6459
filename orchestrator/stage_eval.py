"""`eval`: held-out tasks of each environment, answers sampled at temperature 1."""

import asyncio
import time
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from envs.source import open_source
from orchestrator.deadline import within
from orchestrator.run import Run
from orchestrator.run_dir import write_json
from rollout.record import group_lines
from rollout.trajectory import Group, Ticket

STAGE = "eval"
EVAL_TICKETS = 10**9
"""Tickets of evaluations start here, so that their seeds are never those of training."""


async def run_eval(run: Run) -> Path:
    """Evaluate the newest model; writes `eval/<label>.json` and its trajectories, returns the former."""
    state = run.folder.state()
    fleet = await run.serving(run.model_dir, stage=f"eval of {state.label}")
    config, began = run.config.eval, time.monotonic()
    run.progress.stage(f"eval-{state.label}", 0)
    tickets = [
        Ticket(number=EVAL_TICKETS + env_number * config.tasks + index, task=source.task(index), admitted=run.version)
        for env_number, source in enumerate(
            open_source(env, settings, split="heldout", seed=run.config.seed)
            for env, settings in sorted(run.config.envs.items())
        )
        for index in range(config.tasks)
    ]
    answering = asyncio.gather(*(fleet.run_group(ticket, config.samples) for ticket in tickets))
    groups = await run.stop.wait_or(
        within(config.timeout_s, answering, stage=f"eval of {state.label}", waiting_for=lambda: "held-out answers")
    )
    by_env = {env: env_result([g for g in groups if g.ticket.task.env == env]) for env in sorted(run.config.envs)}
    result = {
        "label": state.label,
        "order": len(list(run.folder.evals.glob("*.json"))),
        "model": state.model,
        "k": config.samples,
        "seconds": time.monotonic() - began,
        "envs": by_env,
    }
    lines = [line for group in groups for line in group_lines(group)]
    (run.folder.trajectories / f"eval-{state.label}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = run.folder.evals / f"{state.label}.json"
    write_json(path, result)
    metrics = {f"{env}/{name}": value for env, values in by_env.items() for name, value in values.items()}
    run.log(f"eval-{state.label}", 0, metrics)
    return path


def env_result(groups: list[Group]) -> dict[str, float]:
    """avg@k and pass@k over an environment's groups, with the standard error over tasks of the former."""
    right = [[t.correct for t in group.trajectories] for group in groups if group.trajectories]
    scored = [t for group in groups for t in group.trajectories]
    shares = [fmean(answers) for answers in right]
    return {
        "tasks": len(groups),
        "samples": len(scored),
        "avg_at_k": fmean(shares) if shares else 0.0,
        "pass_at_k": fmean(any(answers) for answers in right) if right else 0.0,
        "stderr": stdev(shares) / sqrt(len(shares)) if len(shares) > 1 else 0.0,
        "reward": fmean(t.reward or 0.0 for t in scored) if scored else 0.0,
        "tokens": fmean(t.sampled_tokens for t in scored) if scored else 0.0,
        "truncated": fmean(t.truncated for t in scored) if scored else 0.0,
        "failures": sum(len(group.failed) for group in groups),
    }
