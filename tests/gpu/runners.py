"""An engine: log-probabilities of its samples against the trainer's, thinking limits, and tokens a second."""

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from gpu.machine import LARGE, MIDDLE, SMALL, attention_only, device, fresh, on_gpu
from gpu.measure import Report

from temper.learner.models.fresh import byte_tokenizer
from temper.learner.models.loading import cast, read_model
from temper.learner.models.scorer import Scorer
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.config import Dtype, EngineConfig, PrefixCaching, Runner, Speculation
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion

BOUNDS: dict[Dtype, float] = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest mean difference on a GPU in nats. The CPU's bound for float32 is 1e-5 at every token."""
EXACT = 1e-5
LIMITS = (None, ThinkingLimit(tokens=5, grace=0), ThinkingLimit(tokens=17, grace=6))
WAYS: tuple[tuple[Dtype, Speculation], ...] = (("float32", "off"), ("bfloat16", "off"))
DRAFTED: tuple[tuple[Dtype, Speculation], ...] = (("float32", "ngram"),)
"""For the second runner alone: the first makes no drafts on a GPU."""
REPEATS = 3
CACHING: tuple[PrefixCaching, ...] = ("on", "off")


def run(report: Report, *, runner: Runner, small: bool) -> None:
    """Verify a runner, then measure it. The second needs Triton, which vLLM's CPU build lacks."""
    if runner == "v2" and not on_gpu():
        report.note("it needs Triton, which vLLM's build for CPUs does not have: nothing of it runs here")
        return
    compare(report, runner=runner, small=small)
    measure(report, runner=runner, small=small)


def compare(report: Report, *, runner: Runner, small: bool) -> None:
    """Compare them in float32, in bfloat16 and with drafts, and check the positions of forced ends of thinking."""
    requests, length = (6, 32) if small else (96, 256)
    with fresh(SMALL if small else MIDDLE) as (folder, parameters):
        report.note(
            f"log-probabilities of a hybrid of {parameters:,} parameters, {requests} answers of {length} tokens"
        )
        tags = ThinkingTags(byte_tokenizer())
        asked = _asked(tags, requests, length)
        for dtype, speculation in (*WAYS, *(DRAFTED if runner == "v2" else ())):
            config = EngineConfig(
                dtype=dtype, max_model_len=512, gpu_memory_utilization=0.5, runner=runner, speculation=speculation
            )
            what = dtype if speculation == "off" else f"{dtype}, drafts by {speculation}"
            sampled = asyncio.run(_sampled(folder, config, asked, tags))
            wrong = sum(not _closed_by_rule(tags, *pair) for pair in zip(asked, sampled, strict=True))
            report.figure(f"{what}: answers that end thinking at another token than the rule", wrong, at_most=0)
            gaps = _gaps(folder, asked, sampled, dtype)
            exact = dtype == "float32" and not on_gpu()
            report.figure(f"{what}: mean difference", gaps.mean().item(), "nats", at_most=BOUNDS[dtype])
            report.figure(f"{what}: largest", gaps.max().item(), "nats", at_most=EXACT if exact else None)


def _asked(tags: ThinkingTags, requests: int, length: int) -> list[TurnRequest]:
    """Return requests that begin in thinking, each with one of the limits."""
    opening = "<think>\n" if tags.is_opened_by_prompt else ""
    text = f"<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n{opening}"
    ids = tuple(byte_tokenizer()(text)["input_ids"])
    return [
        TurnRequest(prompt_ids=ids[number % 5 :], max_tokens=length, seed=number, limit=LIMITS[number % len(LIMITS)])
        for number in range(requests)
    ]


async def _sampled(
    folder: Path, config: EngineConfig, asked: list[TurnRequest], tags: ThinkingTags
) -> list[Completion]:
    engine = VllmEngine(folder, config, version=WeightVersion(step=0), ends=(), tags=tags)
    await engine.start()
    try:
        return list(await asyncio.gather(*(engine.generate(one) for one in asked)))
    finally:
        await engine.close()


def _closed_by_rule(tags: ThinkingTags, request: TurnRequest, said: Completion) -> bool:
    """Return whether the marked tokens are exactly those that the rule injects."""
    marked = [place for place, forced in enumerate(said.injected_T) if forced]
    if request.limit is None:
        return not marked
    close = tags.forced_end(said.token_ids, request.limit, opened=tags.is_opened_by(request.prompt_ids))
    if close is None:
        return not marked
    end = min(close.end, len(said.token_ids))
    return marked == list(range(close.start, end)) and said.token_ids[close.start : end] == close.ids[: len(marked)]


def _gaps(folder: Path, asked: list[TurnRequest], sampled: list[Completion], dtype: Dtype) -> torch.Tensor:
    """Return the absolute log-probability difference of every sampled token."""
    model = read_model(folder)
    cast(model, bf16=dtype != "float32")
    model.to(device()).eval()
    scorer = Scorer(model, model, tokens=4096)
    gaps = []
    with torch.no_grad():
        for request, completion in zip(asked, sampled, strict=True):
            ids_BT = torch.tensor([[*request.prompt_ids, *completion.token_ids]], device=device())
            scores = scorer(ids_BT, torch.ones_like(ids_BT).bool()).logprobs_BT[0, len(request.prompt_ids) :]
            free = ~torch.tensor(completion.injected_T)
            gaps.append((scores.cpu().float() - torch.tensor(completion.logprobs_T))[free].abs())
    return torch.cat(gaps)


def measure(report: Report, *, runner: Runner, small: bool) -> None:
    """Measure sampled tokens a second on the same requests, with and without cached prefixes."""
    groups, answers, prompt, length = (2, 4, 200, 16) if small else (16, 16, 1024, 256)
    report.note(f"{groups} groups of {answers} answers of {length} tokens, prompts of {prompt}, a seed for each answer")
    # Hybrids cache no prefixes in vLLM's CPU build.
    with attention_only(small=True) if small else fresh(LARGE) as (folder, parameters):
        report.note(f"{'a Qwen 3' if small else 'a hybrid'} of {parameters:,} parameters")
        found = {}
        for caching in CACHING:
            config = _config(runner, caching)
            asked = partial(_requests, groups=groups, answers=answers, prompt=prompt, length=length)
            taken = asyncio.run(_seconds(folder, config, asked))
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


async def _seconds(folder: Path, config: EngineConfig, requests: Callable[[int], list[TurnRequest]]) -> float:
    """Return the least seconds of the requests over several rounds with different prompts."""
    engine = VllmEngine(folder, config, version=WeightVersion(step=0), ends=())
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
