"""vLLM returns log-probabilities under the distribution that it samples from, also with other requests in the batch."""

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import samples_from_groups
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion

TASK = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "?"},), spec={})
TOLERANCE = 1e-5
"""Largest difference of a log-probability, in nats, in float32."""
GREEDY = Sampling(temperature=0)
SAMPLINGS = [
    PLAIN,
    GREEDY,
    Sampling(temperature=0.5),
    Sampling(temperature=2.0),
    Sampling(top_p=0.8),
    Sampling(top_k=1),
    Sampling(top_k=5, temperature=0.7),
    Sampling(min_p=0.3),
    Sampling(temperature=1.5, top_p=0.9, top_k=20, min_p=0.05),
]
LIMITS = [None, ThinkingLimit(tokens=0), ThinkingLimit(tokens=7, grace=3)]


def distribution(logits_TV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities of all tokens as `rollout/sampling.py` defines them. Greedy sampling has temperature 1."""
    logs_TV = (logits_TV if sampling.greedy else logits_TV / sampling.temperature).log_softmax(-1)
    out_TV = torch.zeros_like(logs_TV, dtype=torch.bool)
    if sampling.min_p:
        out_TV |= logs_TV < logs_TV.max(-1, keepdim=True).values + math.log(sampling.min_p)
    if sampling.top_k:
        kept_TV = logs_TV.masked_fill(out_TV, -math.inf)
        out_TV |= kept_TV < kept_TV.topk(sampling.top_k, dim=-1).values[:, -1:]
    if sampling.top_p < 1:
        ordered_TV, order_TV = logs_TV.masked_fill(out_TV, -math.inf).log_softmax(-1).sort(-1, descending=True)
        before_TV = ordered_TV.exp().cumsum(-1) - ordered_TV.exp()
        out_TV |= torch.zeros_like(out_TV).scatter(-1, order_TV, before_TV >= sampling.top_p)
    return logs_TV.masked_fill(out_TV, -math.inf).log_softmax(-1)


def check(model: torch.nn.Module, prompt: tuple[int, ...], sampling: Sampling, said: Completion) -> None:
    """Every sampled token has the log-probability that the model's logits give it."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*prompt, *said.token_ids]])).logits[0, len(prompt) - 1 : -1].double()
    logs_TV = distribution(logits_TV, sampling)
    for place, (token, logprob, forced) in enumerate(
        zip(said.token_ids, said.logprobs_T, said.injected_T, strict=True)
    ):
        assert math.isnan(logprob) == forced
        if not forced:
            assert abs(logprob - logs_TV[place, token].item()) < TOLERANCE, (sampling, place)
            assert not sampling.greedy or token == logits_TV[place].argmax()


async def sampling_is_exact(engine: VllmEngine, model_dir: Path) -> None:
    """Sample in many ways at once. The model and a learner compute the same log-probabilities."""
    tokenizer = load_tokenizer(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tags = ThinkingTags(tokenizer)
    prompt = tuple(tokenizer("<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n<think>\n")["input_ids"])
    asked = [(sampling, limit) for sampling in SAMPLINGS for limit in LIMITS]
    said = await asyncio.gather(
        *(
            engine.generate(TurnRequest(prompt_ids=prompt, max_tokens=40, seed=seed, sampling=sampling, limit=limit))
            for seed, (sampling, limit) in enumerate(asked)
        )
    )
    for (sampling, limit), one in zip(asked, said, strict=True):
        check(model, prompt, sampling, one)
        close = None if limit is None else tags.forced_end(one.token_ids, limit)
        marked = [place for place, forced in enumerate(one.injected_T) if forced]
        assert marked == ([] if close is None else list(range(close.start, close.end)))
    assert sum(any(one.injected_T) for one in said) >= len(SAMPLINGS)
    await stops(engine, tokenizer.decode, prompt)
    learn(model_dir, prompt, [(sampling, one) for (sampling, _), one in zip(asked, said, strict=True)])


def learn(model_dir: Path, prompt: tuple[int, ...], said: list[tuple[Sampling, Completion]]) -> None:
    """With the same temperature, learner and engine agree: ratios are 1, logprob diffs are 0."""
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    try:
        rank.load(str(model_dir), optim=OptimConfig(warmup_steps=0), total_steps=2)
        groups = []
        for number, temperature in enumerate((0.5, 1.0, 2.0)):
            sampling = Sampling(temperature=temperature)
            turns = [turn_of(prompt, one) for own, one in said if own == sampling]
            ticket = Ticket(number=number, task=TASK, admitted=WeightVersion(step=0), sampling=sampling)
            answers = (
                Trajectory(task=TASK, turns=(turn,), stop=Stop.ENV, reward=float(n)) for n, turn in enumerate(turns)
            )
            groups.append(Group(ticket=ticket, trajectories=tuple(answers)))
        samples = samples_from_groups(groups, advantage="rloo")
        for shared in (False, True):
            batch = build_batch(samples, ranks=1, micro_batch_tokens=512, pad_id=0, shared_prompts=shared)
            metrics = rank.train_step(batch.share(0), loss=LossConfig(entropy_bonus=0.1))
            assert metrics["mismatch_abs"] < TOLERANCE
            assert abs(metrics["is_weight"] - 1) < TOLERANCE
            rank.load(str(model_dir), optim=OptimConfig(warmup_steps=0), total_steps=2)
    finally:
        rank.close()


def turn_of(prompt: tuple[int, ...], said: Completion) -> Turn:
    return Turn(
        context_ids=as_ids(prompt),
        sampled_ids=as_ids(said.token_ids),
        logprobs_T=as_floats(said.logprobs_T),
        versions_T=as_ids(said.versions_T),
        injected_T=as_marks(said.injected_T),
        text="",
    )


async def stops(engine: VllmEngine, text: Callable[[list[int]], str], prompt: tuple[int, ...]) -> None:
    """A greedy turn ends with the token that completes a stop string, also if it resumes after any part of its tokens."""
    prompts = [prompt[:count] for count in range(3, len(prompt))]
    free = await asyncio.gather(
        *(engine.generate(TurnRequest(prompt_ids=ids, max_tokens=40, seed=1, sampling=GREEDY)) for ids in prompts)
    )
    found = [
        (ids, one, place)
        for ids, one in zip(prompts, free, strict=True)
        for place, pair in enumerate(pairwise(one.token_ids))
        if (said := text(list(pair))) and said.isprintable() and said.isascii()  # a half of a character is no text
    ]
    ids, whole, place = max(found, key=lambda each: each[2])
    sampling = Sampling(temperature=0, stop=["never said", text(list(whole.token_ids[place : place + 2]))])
    ended = await engine.generate(TurnRequest(prompt_ids=ids, max_tokens=40, seed=1, sampling=sampling))
    assert ended.finished
    assert ended.token_ids == whole.token_ids[: len(ended.token_ids)]
    assert sampling.stop[1] in text(list(ended.token_ids))
    assert sampling.stop[1] not in text(list(ended.token_ids[:-1]))
    for cut in range(1, len(ended.token_ids)):
        prefix_ids = ended.first(cut).token_ids
        rest = await engine.generate(
            TurnRequest(prompt_ids=ids, max_tokens=40 - cut, seed=9, sampling=sampling, prefix_ids=prefix_ids)
        )
        assert (*prefix_ids, *rest.token_ids) == ended.token_ids
        assert rest.finished
