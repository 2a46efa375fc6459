"""The processor of vLLM's second model runner, with that runner's inputs: new and finished requests, drafts, resumption.

The runner itself needs Triton and does not run on CPUs.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from support import tiny_models
from unit.rollout.budget.test_limited_turns import SIZE, chosen, drawn, injected_token
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcRequestState

from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.rule import BUDGET, CLOSING, ThinkingLimit, ThinkingTags, extra_args
from temper.rollout.engines.runners.batch_thinking_processor import BatchThinkingProcessor

SLOTS, LENGTH, DRAFTS = 12, 200, 3


@dataclass
class Buffer:
    """The runner's data of each slot, on the device and on the host."""

    gpu: torch.Tensor

    @property
    def np(self) -> np.ndarray:
        return self.gpu.numpy()


@dataclass
class Turn:
    """A request: its limit, its prompt, which ends with the turn's prefix, and its sampled tokens."""

    limit: ThinkingLimit | None
    prompt: list[int]
    prefix_ids: list[int]
    said: list[int] = field(default_factory=list)


def test_changing_batches_follow_the_thinking_rule(tmp_path: Path) -> None:
    rng, tokenizer = random.Random(2), byte_tokenizer()
    model = tiny_models.llama(tmp_path)
    tags = ThinkingTags(tokenizer)
    buffers = [Buffer(torch.zeros(shape, dtype=torch.int32)) for shape in [(SLOTS, LENGTH), *[(SLOTS,)] * 3]]
    all_ids, prompt_len, prefill_len, total_len = buffers
    states = LogitsProcRequestState(torch.device("cpu"), SLOTS, SIZE, all_ids, prompt_len, prefill_len, total_len)
    config = SimpleNamespace(
        model_config=SimpleNamespace(tokenizer=str(model)),
        additional_config={CLOSING: tags.closing},
        num_speculative_tokens=DRAFTS,
    )
    processor = BatchThinkingProcessor(config, states)
    running: dict[int, Turn] = {}
    forced = accepted = 0

    def enter(slot: int, turn: Turn) -> None:
        """Give a turn a slot, as a new or a preempted request, whose sampled tokens count as read."""
        ids = [*turn.prompt, *turn.prefix_ids, *turn.said]
        all_ids.gpu[slot, : len(ids)] = torch.tensor(ids)
        prompt_len.np[slot] = len(turn.prompt) + len(turn.prefix_ids)
        prefill_len.np[slot] = total_len.np[slot] = len(ids)
        given = {} if turn.limit is None else extra_args(turn.limit, prefix_tokens=len(turn.prefix_ids))
        assert processor.add_request(slot, SamplingParams(extra_args=given)) == (BUDGET in given)
        running[slot] = turn

    def expected(turn: Turn, guess: list[int]) -> int | None:
        if turn.limit is None:
            return None
        ids = [*turn.prefix_ids, *turn.said, *guess]
        return injected_token(tags, turn.limit, ids, opened=tags.is_opened_by(turn.prompt))

    for _ in range(150):
        for slot in rng.sample(range(SLOTS), 2):
            if slot not in running or len(running[slot].said) > 20:
                limit = ThinkingLimit(tokens=rng.choice([0, 2, 9, 15]), grace=rng.choice([0, 5]))
                prompt = tokenizer(rng.choice(["ask <think>\n", "ask <think>\n", "ask\n"]))["input_ids"]
                prefix_ids = drawn(rng, tokenizer, rng.choice([0, 0, 0, 7]))
                enter(slot, Turn(None if rng.random() < 0.2 else limit, prompt, prefix_ids))
            elif rng.random() < 0.3:
                other = next((free for free in range(SLOTS) if free not in running), slot)
                enter(other, running.pop(slot))
        processor.apply_staged_writes()
        batch = rng.sample(sorted(running), rng.randint(1, len(running)))
        guesses = [drawn(rng, tokenizer, rng.randint(0, DRAFTS)) for _ in batch]
        rows = [(slot, place) for slot, guess in zip(batch, guesses, strict=True) for place in range(len(guess) + 1)]
        last = [(running[slot].prompt + running[slot].prefix_ids + running[slot].said)[-1] for slot in batch]
        inputs = [token for first, guess in zip(last, guesses, strict=True) for token in (first, *guess)]
        context = LogitsContext(
            expanded_idx_mapping=torch.tensor([slot for slot, _ in rows], dtype=torch.int32),
            idx_mapping=torch.tensor(batch, dtype=torch.int32),
            idx_mapping_np=np.array(batch, dtype=np.int32),
            expanded_local_pos=torch.tensor([place for _, place in rows], dtype=torch.int32),
            input_ids=torch.tensor(inputs, dtype=torch.int32),
            pos=torch.zeros(len(rows), dtype=torch.int64),
            seq_lens_upper_bound_np=np.full(len(batch), LENGTH, dtype=np.int32),
        )
        inserted = chosen(processor.apply(torch.zeros(len(rows), SIZE), context))
        for slot, guess in zip(batch, guesses, strict=True):
            turn = running[slot]
            ruled = [expected(turn, guess[:count]) for count in range(len(guess) + 1)]
            assert [inserted.pop(0) for _ in ruled] == ruled
            kept = rng.randint(
                0, len(guess)
            )  # drafts are accepted up to the first that differs from the injected token
            kept = next((at for at in range(kept) if ruled[at] not in (None, guess[at])), kept)
            after = ruled[kept]
            new = [*guess[:kept], drawn(rng, tokenizer, 1)[0] if after is None else after]
            forced, accepted = forced + (after is not None), accepted + kept
            all_ids.gpu[slot, total_len.np[slot] : total_len.np[slot] + len(new)] = torch.tensor(new)
            total_len.np[slot] += len(new)
            turn.said += new
    assert (forced > 40, accepted > 100) == (True, True)
