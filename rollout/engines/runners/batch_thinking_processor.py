"""The thinking limit in vLLM's second model runner, for all requests of a batch together (the first:
`thinking_processor.py`).

It applies `rollout/budget/limited_turns.py` on the device. The host sees a request only at its start. A request may have
rows for drafts, each with the logits after them.
"""

from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcessor, LogitsProcRequestState

from temper.rollout.budget.limited_turns import FREE, Turns
from temper.rollout.budget.rule import BUDGET, PREFIX, check_extra_args
from temper.rollout.engines.runners.thinking_processor import load_turns, start_turn
from temper.rollout.formats.turn_format import OPENING_TOKENS

NO_TURN = 2**30
"""Start of the turn of a request without a limit: after all of its tokens."""


class BatchThinkingProcessor(LogitsProcessor):
    """Ends thinking at its limit. Requests without a limit are left alone."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self._requests = req_states
        self._turns = load_turns(
            vllm_config, vocabulary=req_states.vocab_size, slots=req_states.max_num_reqs, device=req_states.device
        )
        self._first = torch.full((req_states.max_num_reqs,), NO_TURN, device=req_states.device)
        """Start of the turn, by slot."""
        self._limited = np.zeros(req_states.max_num_reqs, dtype=bool)
        self._new_requests: dict[int, SamplingParams] = {}
        """Requests that came since the last pass, by slot."""
        self._drafts = int(vllm_config.num_speculative_tokens)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        check_extra_args(sampling_params.extra_args or {})

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Add a new or resumed request. Return whether it has a limit."""
        self._limited[req_idx] = BUDGET in (sampling_params.extra_args or {})
        self._new_requests[req_idx] = sampling_params
        return bool(self._limited[req_idx])

    def apply_staged_writes(self) -> None:
        """Read the prompt's end and the first tokens of each new request."""
        if not self._new_requests:
            return
        first = {slot: self._first_of(slot) for slot in self._new_requests}
        self._turns.put(list(first), [self._start_turn(slot, first[slot]) for slot in first])
        slots, places = (torch.tensor(list(each)).to(self._first.device) for each in (first.keys(), first.values()))
        self._first[slots] = places
        self._new_requests.clear()

    def _first_of(self, slot: int) -> int:
        if not self._limited[slot]:
            return NO_TURN
        return int(self._requests.prompt_len.np[slot]) - int((self._new_requests[slot].extra_args or {}).get(PREFIX, 0))

    def _start_turn(self, slot: int, first: int) -> Turns:
        if not self._limited[slot]:
            return FREE
        begin = max(0, first - OPENING_TOKENS)
        ids = self._requests.all_token_ids.gpu[slot, begin : int(self._requests.prefill_len.np[slot])].tolist()
        return start_turn(self._turns, self._new_requests[slot], ids, first=first - begin)

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if not self._limited[ctx.idx_mapping_np].any():
            return logits
        self._read_sampled(ctx.idx_mapping.long())
        turns = self._turns.of(ctx.expanded_idx_mapping.long())
        if self._drafts:
            turns = self._turns.read_drafts(turns, *_drafts(ctx, self._drafts))
        self._turns.close(logits, turns)
        return logits

    def _read_sampled(self, slots: torch.Tensor) -> None:
        """Read the tokens sampled since the last pass: one per request, plus accepted drafts."""
        ids, lengths = self._requests.all_token_ids.gpu, self._requests.total_len.gpu[slots]
        for _ in range(1 + self._drafts):
            place = self._first[slots] + self._turns.of(slots).size
            new = place < lengths
            self._turns.read(slots, torch.where(new, ids[slots, torch.where(new, place, 0)], 0).long(), new)


def _drafts(ctx: LogitsContext, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the drafts before each row, and which of `most` exist. A request's rows are consecutive.

    A draft below 0 is a placeholder and is always rejected.
    """
    places = torch.arange(len(ctx.input_ids), device=ctx.input_ids.device)
    offsets = torch.arange(1, most + 1, device=ctx.input_ids.device)
    own = (places - ctx.expanded_local_pos)[:, None] + offsets
    given = offsets <= ctx.expanded_local_pos[:, None]
    return torch.where(given, ctx.input_ids[torch.where(given, own, 0)], 0).long().clamp(min=0), given
