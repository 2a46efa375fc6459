"""The limit of a thought inside vLLM: a logits processor that closes it where `rollout/budget/rule.py` says.

It runs in the engine's process, for rollouts and for the server alike. A request asks for it with the extra arguments
`thinking_budget` and `thinking_grace` (tokens); `thinking_begun` is how many of the prompt's last tokens are the beginning
of the turn, which counts. The text that closes a thought is the engine's: `thinking_closing` of its
`additional_config`.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from rollout.budget.request_args import BEGUN, BUDGET, CLOSING, GRACE, check_extra_args
from rollout.budget.rule import ForcedClose, ThoughtLimit, ThoughtTags
from rollout.tokenizer import load_tokenizer


class ThoughtProcessor(AdapterLogitsProcessor):
    """Forces the closing of thoughts at their limits; requests without a limit are left alone."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._model = Path(vllm_config.model_config.tokenizer)
        self._closing = str(vllm_config.additional_config.get(CLOSING, ""))

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for what should be a number of tokens and is none, and for a closing."""
        check_extra_args(sampling_params.extra_args or {})

    def is_argmax_invariant(self) -> bool:
        """Return False: it decides which token comes."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> "_Request | None":
        """Return the state of a new request; None without a limit."""
        given = params.extra_args or {}
        if BUDGET not in given:
            return None
        limit = ThoughtLimit(tokens=given[BUDGET], grace=given.get(GRACE, 0))
        tags = self._tags if params.structured_outputs is None else self._tags_before_grammar
        return _Request(tags, limit, begun=given.get(BEGUN, 0))

    @cached_property
    def _tags(self) -> ThoughtTags:
        return ThoughtTags(load_tokenizer(self._model), closing=self._closing)

    @cached_property
    def _tags_before_grammar(self) -> ThoughtTags:
        """Those whose closing ends with the tag: the answer's grammar begins right after it and takes nothing else."""
        tag = self._tags.tags.closing
        return ThoughtTags(load_tokenizer(self._model), closing=self._closing.partition(tag)[0] + tag)


class _Request:
    """One request: nothing to do before the limit, a token each step while the closing is inserted, then nothing more."""

    def __init__(self, tags: ThoughtTags, limit: ThoughtLimit, *, begun: int) -> None:
        self._tags = tags
        self._limit = limit
        self._begun = begun
        self._over = False
        self._opened: bool | None = None
        self._forced_close: ForcedClose | None = None

    def __call__(self, prompt_ids: Sequence[int], new_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if self._over or self._begun + len(new_ids) < self._limit.tokens:
            return logits
        ids = [*prompt_ids[max(0, len(prompt_ids) - self._begun) :], *new_ids] if self._begun else new_ids
        if self._opened is None:
            self._opened = self._tags.opened_by(prompt_ids[: len(prompt_ids) - self._begun])
        if self._forced_close is None:
            self._forced_close = self._tags.forced_close(ids, self._limit, opened=self._opened)
            if self._forced_close is None:
                self._over = self._tags.close_of(ids) is not None
                return logits
        place = len(ids) - self._forced_close.start
        if place >= len(self._forced_close.ids):
            self._over = True
            return logits
        only = torch.full_like(logits, float("-inf"))
        only[self._forced_close.ids[place]] = 0.0
        return only
