"""Log-probabilities of an engine against those of the trainer's model, of what the engine sampled, with limits of thoughts."""

import asyncio
from pathlib import Path

import torch

from temper.learner.models.fresh import byte_tokenizer
from temper.learner.models.loading import cast, read_model
from temper.learner.models.scorer import Scorer
from temper.orchestrator.tools.gpu_check.machine import device, on_gpu
from temper.orchestrator.tools.gpu_check.models import MIDDLE, SMALL, fresh
from temper.orchestrator.tools.gpu_check.part import Report
from temper.rollout.budget.rule import ThoughtLimit, ThoughtTags
from temper.rollout.engines.config import Dtype, EngineConfig, Runner, Speculation
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion

BOUNDS: dict[Dtype, float] = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest mean difference on a GPU in nats. On a CPU float32 is held to 1e-5 at every token."""
EXACT = 1e-5
LIMITS = (None, ThoughtLimit(tokens=5, grace=0), ThoughtLimit(tokens=17, grace=6))
WAYS: tuple[tuple[Dtype, Speculation], ...] = (("float32", "off"), ("bfloat16", "off"))
DRAFTED: tuple[tuple[Dtype, Speculation], ...] = (("float32", "ngram"),)
"""What the second runner is asked beside it: on a GPU the first makes no drafts."""


def compare(report: Report, *, runner: Runner, small: bool) -> None:
    """Compare them in float32, in bfloat16 and with drafts, and closings of thoughts with where the rule puts them."""
    requests, length = (6, 32) if small else (96, 256)
    with fresh(SMALL if small else MIDDLE) as (folder, parameters):
        report.note(
            f"log-probabilities of a hybrid of {parameters:,} parameters, {requests} answers of {length} tokens"
        )
        tags = ThoughtTags(byte_tokenizer())
        asked = _asked(tags, requests, length)
        for dtype, speculation in (*WAYS, *(DRAFTED if runner == "v2" else ())):
            config = EngineConfig(
                dtype=dtype, max_model_len=512, gpu_memory_utilization=0.5, runner=runner, speculation=speculation
            )
            what = dtype if speculation == "off" else f"{dtype}, drafts by {speculation}"
            sampled = asyncio.run(_sampled(report, folder, config, asked, tags))
            wrong = sum(not _closed_by_rule(tags, *pair) for pair in zip(asked, sampled, strict=True))
            report.figure(f"{what}: answers with a closing elsewhere than the rule says", wrong, at_most=0)
            with report.compiling():
                gaps = _gaps(folder, asked, sampled, dtype)
            exact = dtype == "float32" and not on_gpu()
            report.figure(f"{what}: mean difference", gaps.mean().item(), "nats", at_most=BOUNDS[dtype])
            report.figure(f"{what}: largest", gaps.max().item(), "nats", at_most=EXACT if exact else None)


def _asked(tags: ThoughtTags, requests: int, length: int) -> list[TurnRequest]:
    """Return requests that begin in a thought, each with one of the limits."""
    opening = "<think>\n" if tags.opened_by_prompt else ""
    text = f"<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n{opening}"
    ids = tuple(byte_tokenizer()(text)["input_ids"])
    return [
        TurnRequest(prompt_ids=ids[number % 5 :], max_tokens=length, seed=number, limit=LIMITS[number % len(LIMITS)])
        for number in range(requests)
    ]


async def _sampled(
    report: Report, folder: Path, config: EngineConfig, asked: list[TurnRequest], tags: ThoughtTags
) -> list[Completion]:
    engine = VllmEngine(folder, config, version=WeightVersion(step=0), ends=(), tags=tags)
    with report.compiling():
        await engine.start()
    try:
        return list(await asyncio.gather(*(engine.generate(one) for one in asked)))
    finally:
        await engine.close()


def _closed_by_rule(tags: ThoughtTags, request: TurnRequest, said: Completion) -> bool:
    """Return whether the tokens that are marked as inserted are those that the rule inserts."""
    marked = [place for place, forced in enumerate(said.forced_T) if forced]
    if request.limit is None:
        return not marked
    close = tags.forced_close(said.token_ids, request.limit, opened=tags.opened_by(request.prompt_ids))
    if close is None:
        return not marked
    end = min(close.end, len(said.token_ids))
    return marked == list(range(close.start, end)) and said.token_ids[close.start : end] == close.ids[: len(marked)]


def _gaps(folder: Path, asked: list[TurnRequest], sampled: list[Completion], dtype: Dtype) -> torch.Tensor:
    """Return the difference of every sampled token's log-probability, without its sign."""
    model = read_model(folder)
    cast(model, bf16=dtype != "float32")
    model.to(device()).eval()
    scorer = Scorer(model, model, tokens=4096)
    gaps = []
    with torch.no_grad():
        for request, completion in zip(asked, sampled, strict=True):
            ids_BT = torch.tensor([[*request.prompt_ids, *completion.token_ids]], device=device())
            scores = scorer(ids_BT, torch.ones_like(ids_BT).bool()).logprobs_BT[0, len(request.prompt_ids) :]
            free = ~torch.tensor(completion.forced_T)
            gaps.append((scores.cpu().float() - torch.tensor(completion.logprobs_T))[free].abs())
    return torch.cat(gaps)
