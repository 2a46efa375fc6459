"""The thinking limit in vLLM's first model runner: a logits processor that ends the thinking.

Rollouts and the server use it. `batch_thinking_processor.py` is its equivalent for the second runner. A request sets its
limit with the extra arguments `thinking_budget` and `thinking_grace` (tokens). The last `thinking_prefix_tokens` tokens of
the prompt belong to the turn. The engine's `additional_config` sets the closing text as `thinking_closing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from temper.rollout.budget.limited_turns import LimitedTurns, Turns
from temper.rollout.budget.rule import BUDGET, CLOSING, GRACE, PREFIX, ThinkingLimit, ThinkingTags, check_extra_args
from temper.rollout.tokenizer import load_tokenizer


@dataclass
class _Request:
    """A request with a limit: its slot, its growing list of sampled tokens, and how many were read."""

    slot: int
    sampled: Sequence[int]
    read: int


def load_turns(vllm_config: Any, *, vocabulary: int, slots: int, device: torch.device) -> LimitedTurns:
    """Return the turns of an engine. The closing of variant 1 ends before the grammar of an answer."""
    tokenizer = load_tokenizer(Path(vllm_config.model_config.tokenizer))
    tags = ThinkingTags(tokenizer, closing=str(vllm_config.additional_config[CLOSING]))
    return LimitedTurns(tokenizer, [tags, tags.before_grammar()], vocabulary=vocabulary, slots=slots, device=device)


def start_turn(turns: LimitedTurns, params: SamplingParams, ids: list[int], *, first: int) -> Turns:
    """Return the state of a limited turn, which begins at `first` of these ids."""
    given = params.extra_args or {}
    limit = ThinkingLimit(tokens=given[BUDGET], grace=given.get(GRACE, 0))
    return turns.start_turn(limit, ids[:first], ids[first:], variant=int(params.structured_outputs is not None))


class ThinkingProcessor(LogitsProcessor):
    """Ends thinking at its limit. Requests without a limit are left alone."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._none = 2 * int(vllm_config.scheduler_config.max_num_seqs)  # some come before others have gone
        """The slot of requests without a limit."""
        vocabulary = vllm_config.model_config.get_vocab_size()
        self._turns = load_turns(vllm_config, vocabulary=vocabulary, slots=self._none + 1, device=device)
        self._requests: dict[int, _Request] = {}
        """Requests with a limit, by row."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        check_extra_args(sampling_params.extra_args or {})

    def is_argmax_invariant(self) -> bool:
        """Return False: it changes which token is sampled."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._requests, batch_update, self._new)

    def _new(self, params: SamplingParams, prompt: list[int] | None, sampled: list[int]) -> _Request | None:
        """Return the state of a new or resumed request. None without a limit."""
        given = params.extra_args or {}
        if BUDGET not in given:
            return None
        assert prompt is not None
        first = len(prompt) - int(given.get(PREFIX, 0))
        taken = {request.slot for request in self._requests.values()}
        slot = next(slot for slot in range(self._none) if slot not in taken)
        self._turns.put([slot], [start_turn(self._turns, params, [*prompt, *sampled], first=first)])
        return _Request(slot=slot, sampled=sampled, read=len(sampled))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._requests:
            return logits
        while behind := [one for one in self._requests.values() if one.read < len(one.sampled)]:
            self._read(behind)
        slots = [self._none] * len(logits)
        for row, request in self._requests.items():
            slots[row] = request.slot
        self._turns.close(logits, self._turns.of(torch.tensor(slots, device=self._device)))
        return logits

    def _read(self, behind: Sequence[_Request]) -> None:
        slots, tokens = [one.slot for one in behind], [one.sampled[one.read] for one in behind]
        new = torch.ones(len(behind), dtype=torch.bool, device=self._device)
        self._turns.read(torch.tensor(slots, device=self._device), torch.tensor(tokens, device=self._device), new)
        for one in behind:
            one.read += 1
