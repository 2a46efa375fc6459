"""What an engine samples a second: groups of answers to prompts that were not seen before."""

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from temper.orchestrator.tools.gpu_check.machine import on_gpu
from temper.orchestrator.tools.gpu_check.models import LARGE, attention_only, fresh
from temper.orchestrator.tools.gpu_check.part import Report
from temper.rollout.engines.config import EngineConfig, PrefixCaching, Runner
from temper.rollout.engines.protocol import TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion

REPEATS = 3
WAYS: tuple[PrefixCaching, ...] = ("on", "off")


def measure(report: Report, *, runner: Runner, small: bool) -> None:
    """Measure sampled tokens a second with cached prefixes and without, the same requests."""
    groups, answers, prompt, length = (2, 4, 200, 16) if small else (16, 16, 1024, 256)
    report.note(f"{groups} groups of {answers} answers of {length} tokens, prompts of {prompt}, a seed for each answer")
    # Hybrids cache no prefixes in vLLM's CPU build.
    with attention_only(small=True) if small else fresh(LARGE) as (folder, parameters):
        report.note(f"{'a Qwen 3' if small else 'a hybrid'} of {parameters:,} parameters")
        found = {}
        for caching in WAYS:
            config = _config(runner, caching)
            asked = partial(_requests, groups=groups, answers=answers, prompt=prompt, length=length)
            taken = asyncio.run(_seconds(report, folder, config, asked))
            found[caching] = groups * answers * length / taken
            report.figure(f"sampled tokens a second, cached prefixes {caching}", found[caching])
    report.figure("cached prefixes", found["on"] / found["off"], "times faster")


def _config(runner: Runner, caching: PrefixCaching) -> EngineConfig:
    return EngineConfig(
        dtype="bfloat16" if on_gpu() else "float32",
        max_model_len=2048,
        batched_tokens=8192,
        prefix_caching=caching,
        runner=runner,
        gpu_memory_utilization=0.8,
    )


def _requests(seed: int, *, groups: int, answers: int, prompt: int, length: int) -> list[TurnRequest]:
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(256) for _ in range(prompt)) for _ in range(groups)]
    return [TurnRequest(prompt_ids=ids, max_tokens=length, seed=n) for ids in prompts for n in range(answers)]


async def _seconds(
    report: Report, folder: Path, config: EngineConfig, requests: Callable[[int], list[TurnRequest]]
) -> float:
    """Return the least seconds that the requests take, of several rounds with other prompts."""
    engine = VllmEngine(folder, config, version=WeightVersion(step=0), ends=())
    with report.compiling():
        await engine.start()
    best = float("inf")
    try:
        for repeat in range(REPEATS):
            asked = requests(repeat)
            began = time.perf_counter()
            await asyncio.gather(*(engine.generate(one) for one in asked))
            best = min(best, time.perf_counter() - began)
    finally:
        await engine.close()
    return best
