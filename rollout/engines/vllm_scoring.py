"""vLLM as something to compare with: it scores sequences that are given to it, and says what went through its layers."""

from pathlib import Path

from vllm import SamplingParams  # behind the engine, which sets the environment that vLLM reads while it is imported
from vllm.logprobs import FlatLogprobs

from temper.rollout.engines.vllm_engine import VllmEngine


class ScoringEngine(VllmEngine):
    """An engine that scores too. It ends at once: there is nothing in it that is to be kept."""

    _grace_s = 0.5

    async def score(self, ids: tuple[int, ...]) -> list[float]:
        """Return the log-probability of each id but the first given those before it, in nats at temperature 1, from passes
        over the whole sequence; nothing is taken from the cache of prefixes.
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
        starts = found.start_indices[1:]  # nothing predicts the first
        return [found.logprobs[at] for at in starts]

    async def record_layers(self) -> str:
        """Record the layers of the passes from now on; returns why that can't be, or nothing."""
        return str(max(await self._process.answer(self._llm.collective_rpc("record_layers"))))

    async def take_layers(self, file: Path) -> int:
        """Write what was recorded (`LayerRecorder.take`), as the first process has it; returns how many tokens it is of."""
        return int((await self._process.answer(self._llm.collective_rpc("take_layers", args=(str(file),))))[0])
