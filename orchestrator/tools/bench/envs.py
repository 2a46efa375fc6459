"""`bench-envs`: how fast environments grade, on one worker and on two, and how fast the sandbox runs programs."""

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temper.envs.binding import BoundEnv
from temper.envs.catalog import ENVIRONMENTS
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.task import Task
from temper.envs.playback import score
from temper.envs.sandbox.conformance.bench import measure
from temper.orchestrator.tools.debug.grading.scoring_pool import ScoringPool, Script
from temper.orchestrator.tools.debug.grading.tasks import generated_tasks

WORKERS = (1, 2)
TASKS = 64
WARM_UP = 16


def bench_envs(files: Mapping[str, Sequence[Task]], *, seconds: float, programs: int) -> dict[str, Any]:
    """Return for JSON the gradings per second of each environment and number of workers, and the sandbox's figures.

    Right answers to generated tasks are graded, or to the tasks given for an environment; each measurement lasts about
    `seconds`, after a warm-up.
    """
    result: dict[str, Any] = {"gradings_per_s": {}, "sandbox": measure(programs, threads=2)}
    for workers in WORKERS:
        with ScoringPool(workers) as pool:
            for env_id, env in ENVIRONMENTS.items():
                if tasks := files.get(env_id) or _generated(env):
                    rate = _rate(pool, _scripts(env, tasks), seconds=seconds)
                    result["gradings_per_s"].setdefault(env_id, {})[f"{workers}_workers"] = round(rate, 1)
    return result


def bench_steps(
    tasks: Sequence[Task], envs: Mapping[str, BoundEnv], *, threads: int, seconds: float = 3.0
) -> dict[str, float]:
    """Measure the steps a second of environments that are given right answers, in so many threads."""
    golds = {name: env.definition.gold for name, env in envs.items()}
    scripts = [(task, gold(task)) for task in tasks if (gold := golds[task.env.name]) is not None]
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda script: score(*script), scripts[:WARM_UP]))
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            list(pool.map(lambda script: score(*script), scripts))
            done += sum(len(turns) for _, turns in scripts)
    return {"env/steps_per_s": done / (time.monotonic() - start)}


def _generated(env: EnvDefinition) -> list[Task]:
    """Generate tasks of an environment that makes its own; a family of environments is as fast as its members."""
    return generated_tasks(env, TASKS, seed=0) if env.generate is not None and env.configure is None else []


def _scripts(env: EnvDefinition, tasks: Sequence[Task]) -> list[Script]:
    assert env.gold is not None
    return [(task, env.gold(task)) for task in tasks]


def _rate(pool: ScoringPool, scripts: list[Script], *, seconds: float) -> float:
    """Measure the scripts scored per second, the start of processes and graders left out."""
    list(pool.scores(itertools.islice(itertools.cycle(scripts), WARM_UP * pool.workers)))
    done, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        for scored in pool.scores(scripts):
            if scored.reward != 1.0:
                raise RuntimeError(
                    f"a right answer was scored {scored.reward}: {scored.failure} {scored.verdict.detail}"
                )
            done += 1
    return done / (time.monotonic() - start)
