"""Drafts in the first model runner: a seed gives the same tokens with and without drafts, budgets included."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import tiny_models
from unit.rollout.budget.test_limited_turns import injected_token
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MoveDirectionality
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.rule import CLOSING, ThinkingLimit, ThinkingTags, extra_args
from temper.rollout.engines.runners.draft_sampler import DraftSampler
from temper.rollout.engines.runners.thinking_processor import ThinkingProcessor

TOKENIZER = byte_tokenizer()
TAGS = ThinkingTags(TOKENIZER)
PROMPT = TOKENIZER("ask <think>\n")["input_ids"]
SIZE, WANTED, ROWS = 288, 40, 6
TEMPERATURES = (1.0, 0.0, 0.5)
CPU = torch.device("cpu")
table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) * 3
"""A model: the logits after each token."""


@dataclass
class Request:
    """One request, its limit and random numbers, and its sampled tokens."""

    number: int
    limit: ThinkingLimit | None
    generator: torch.Generator
    said: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def logits(self) -> torch.Tensor:
        return table[self.said[-1] if self.said else 0]


def requests() -> list[Request]:
    limits = [
        None,
        *(ThinkingLimit(tokens=tokens, grace=grace) for tokens, grace in ((0, 0), (7, 0), (7, 9), (20, 4), (12, 0))),
    ]
    return [Request(row, limit, torch.Generator().manual_seed(row)) for row, limit in enumerate(limits)]


class Batch:
    """Rows of requests that change places, as the runner's do, with their sampler."""

    def __init__(self, model: Path) -> None:
        self.rows = requests()
        self.processors = LogitsProcessors()
        self.sampler = Sampler(logprobs_mode="processed_logprobs")
        self.req_output_token_ids = [request.said for request in self.rows]
        config = SimpleNamespace(
            model_config=SimpleNamespace(tokenizer=str(model), get_vocab_size=lambda: SIZE),
            scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
            additional_config={CLOSING: TAGS.closing},
        )
        self.logitsprocs = self.processors
        runner: Any = SimpleNamespace(
            use_async_scheduling=False,
            sampler=self.sampler,
            speculative_config=None,
            device=CPU,
            input_batch=self,
            vllm_config=config,
        )
        self.drafting = DraftSampler(runner, [ThinkingProcessor])
        assert runner.rejection_sampler is self.drafting
        params = (SamplingParams(extra_args=None if one.limit is None else extra_args(one.limit)) for one in self.rows)
        added = [(row, each, PROMPT, self.rows[row].said) for row, each in enumerate(params)]
        self.update(BatchUpdate(batch_size=ROWS, removed=[], added=added, moved=[]))

    def update(self, update: BatchUpdate | None) -> None:
        for processor in self.processors.all:
            processor.update_state(update)

    def swap(self, one: int, other: int) -> None:
        rows, said = self.rows, self.req_output_token_ids
        rows[one], rows[other] = rows[other], rows[one]
        said[one], said[other] = said[other], said[one]
        self.update(BatchUpdate(ROWS, removed=[], added=[], moved=[(one, other, MoveDirectionality.SWAP)]))

    def metadata(self) -> SamplingMetadata:
        nothing = torch.zeros(ROWS)
        return SamplingMetadata(
            temperature=torch.tensor([TEMPERATURES[one.number % 3] for one in self.rows]),
            all_greedy=False,
            all_random=False,
            top_p=torch.full((ROWS,), 0.95),
            top_k=None,
            generators={row: one.generator for row, one in enumerate(self.rows)},
            max_num_logprobs=0,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=nothing,
            presence_penalties=nothing,
            repetition_penalties=nothing,
            output_token_ids=self.req_output_token_ids,
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=self.processors,
        )

    def step(self, drafts: list[list[int]]) -> None:
        """Sample after drafts, or without any, with the runner's bookkeeping."""
        if not any(drafts):
            output = self.sampler(torch.stack([one.logits for one in self.rows]), self.metadata())
        else:
            rows = [
                table[token]
                for one, own in zip(self.rows, drafts, strict=True)
                for token in (one.said[-1] if one.said else 0, *own)
            ]
            layout = SpecDecodeMetadata.make_dummy(drafts, CPU)
            layout.bonus_logits_indices = layout.cu_num_sampled_tokens - 1
            output = self.drafting(layout, None, torch.stack(rows), self.metadata())
        width = output.sampled_token_ids.shape[1]
        assert output.logprobs_tensors is not None
        logprobs = output.logprobs_tensors.logprobs.reshape(ROWS, width)
        for row, one in enumerate(self.rows):
            new = [token for token in output.sampled_token_ids[row].tolist() if token >= 0]
            one.said.extend(new)
            one.logprobs.extend(logprobs[row, : len(new)].tolist())


@torch.compiler.set_stance("force_eager")  # compiling the sampler would take a minute
def test_drafts_change_no_token_and_no_probability(tmp_path: Path) -> None:
    model = tiny_models.llama(tmp_path)
    plain = Batch(model)
    for _ in range(WANTED):
        plain.step([[]] * ROWS)
    expected = {one.number: one for one in plain.rows}
    rng, drafting, passes = random.Random(3), Batch(model), 0
    while min(len(one.said) for one in drafting.rows) < WANTED:
        drafts = []
        for one in drafting.rows:
            right = expected[one.number].said[len(one.said) :][: rng.randint(0, 3)]
            drafts.append([token if rng.random() < 0.8 else rng.randrange(SIZE) for token in right])
        drafting.step(drafts)
        passes += 1
        if rng.random() < 0.3:
            drafting.swap(*rng.sample(range(ROWS), 2))
    assert passes < WANTED
    for one in drafting.rows:
        same = expected[one.number]
        assert one.said[:WANTED] == same.said
        assert one.logprobs[:WANTED] == pytest.approx(same.logprobs, abs=1e-6)
        if one.limit is not None:
            ruled = [injected_token(TAGS, one.limit, one.said[:end], opened=True) for end in range(WANTED)]
            assert any(token is not None for token in ruled)
            assert all(token in (None, said) for token, said in zip(ruled, one.said, strict=False))
