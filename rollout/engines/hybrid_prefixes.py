"""Cached prefixes of hybrid models on CPUs, so that a group's prompt is computed once.

vLLM keeps the state of a Mamba layer only where a pass ends (cache mode `align`). So the first request with a prompt ends
a pass at the prompt's last match unit, and the others wait for this state instead of computing it again.
"""

from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec
from vllm.v1.request import Request

from temper.rollout.engines.vllm_settings import ON_CPU

SHORTEST = 128
"""Tokens of the shortest prompt that is shared. A wait costs a pass, which is as long as the computation of short ones."""


class PlainMixer(MambaMixer2):
    """A Mamba layer without checkpoints inside a pass, which vLLM's scan on CPUs can't return."""

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec | None:
        spec = super().get_kv_cache_spec(vllm_config)
        return replace(spec, num_prefill_checkpoint_blocks=0) if isinstance(spec, MambaSpec) else spec


if ON_CPU:
    MambaMixer2.register_oot(PlainMixer)


class PromptScheduler(Scheduler):
    """Computes a prompt in two passes, and lets requests with the same prompt wait for the first."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._allocate = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_slots

    def _allocate_slots(self, request: Request, num_new_tokens: int, **given: Any) -> KVCacheBlocks | None:
        """Return new cache blocks. Inside a block a sampled token needs none, and vLLM's search for them costs more than
        its cache saves with short prompts.

        The first two tokens of a block release the block before, and the last one makes it a prefix.
        """
        computed = request.num_computed_tokens
        samples = num_new_tokens == 1 and computed >= request.num_prompt_tokens
        if samples and 2 <= computed % self.block_size < self.block_size - 1:
            return self.kv_cache_manager.empty_kv_cache_blocks
        return self._allocate(request, num_new_tokens, **given)

    def _shared_end(self, request: Request) -> int:
        """Return how many tokens of a prompt its requests share: 0 if it is short, or needs all log-probabilities."""
        if request.num_prompt_tokens < SHORTEST or request.skip_reading_prefix_cache:
            return 0
        return (request.num_prompt_tokens - 1) // self.hash_block_size * self.hash_block_size

    def _mamba_block_aligned_split(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Return the tokens of a request in this pass. A prompt that fits in a pass stops at its shared end alone.

        vLLM also stops it at a block's end before that, and short prompts at their last match unit.
        """
        start = request.num_computed_tokens + num_new_local_computed_tokens + num_external_computed_tokens
        fits = start + num_new_tokens == request.num_prompt_tokens == request.num_tokens
        if not fits or start % self.block_size or request.shared_prefix_boundary >= start + self.block_size:
            return super()._mamba_block_aligned_split(
                request, num_new_tokens, num_new_local_computed_tokens, num_external_computed_tokens
            )
        end = self._shared_end(request)
        return end - start if end > start else num_new_tokens

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Return whether the request can be scheduled now. vLLM would let all later ones wait too."""
        return super()._handle_blocked_waiting_request(request) and not self._waits_for_prompt(request)

    def _waits_for_prompt(self, request: Request) -> bool:
        """Return whether this pass computes or moves the state at the end of the request's prompt."""
        end = self._shared_end(request)
        if request.num_computed_tokens or not end:
            return False
        found = request.block_hashes[end // self.hash_block_size - 1]
        return any(
            make_block_hash_with_group_id(found, manager.kv_cache_group_id) in manager.cached_blocks_this_step
            for manager in self.kv_cache_manager.coordinator.single_type_managers
            if isinstance(manager, MambaManager)
        )


def share_prompts(model_runner: Any) -> None:
    """Let a runner copy whole blocks of cached prompts, and draw no random number in a pass that ends inside a prompt.

    Mamba and attention layers have views of the same blocks. vLLM copies the first view that begins at an address, so the
    view of a whole block must come first. It also undoes such a draw with `Generator.set_offset`, which a CPU's generator
    lacks, so seeds would not hold.
    """
    model_runner.kv_caches.sort(key=lambda cache_B: -cache_B[0].nbytes)
    sample = model_runner.sample_tokens

    def sample_tokens(grammar_output: Any) -> Any:
        batch = model_runner.input_batch
        unfinished = model_runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        held = {row: batch.generators.pop(row) for row in unfinished if row in batch.generators}
        try:
            return sample(grammar_output)
        finally:
            batch.generators.update(held)

    model_runner.sample_tokens = sample_tokens
