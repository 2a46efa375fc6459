"""vLLM for comparisons: scores given sequences, and records its hidden states."""

from pathlib import Path

from vllm import SamplingParams  # after the engine, which sets the environment that vLLM reads at import
from vllm.logprobs import FlatLogprobs

from temper.rollout.engines.vllm_engine import VllmEngine


class ScoringEngine(VllmEngine):
    """An engine that also scores. It ends at once."""

    _grace_s = 0.5

    async def score(self, ids: tuple[int, ...]) -> list[float]:
        """Return the log-probability of each id but the first, in nats at temperature 1. It computes the whole sequence,
        without cached prefixes.
        """
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, flat_logprobs=True, detokenize=False)
        name = f"s{next(self._numbers)}"
        final = None
        async for output in self._llm.generate(self._prompt(ids), params, name):
            final = output
        if final is None:
            raise RuntimeError(f"vLLM ended request {name} without an output")
        found = final.prompt_logprobs
        assert isinstance(found, FlatLogprobs)
        starts = found.start_indices[1:]  # the first id has no prediction
        return [found.logprobs[at] for at in starts]

    async def record_layers(self) -> str:
        """Record the layers from the next pass on. Return the reason if that is impossible, else ""."""
        return str(max(await self._process.answer(self._llm.collective_rpc("record_layers"))))

    async def take_layers(self, file: Path) -> int:
        """Write the first process's recording (`LayerRecorder.take`). Return the number of tokens."""
        return int((await self._process.answer(self._llm.collective_rpc("take_layers", args=(str(file),))))[0])
