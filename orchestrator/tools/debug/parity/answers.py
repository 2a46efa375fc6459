"""The engine side: answers with logprobs by decoding and by prefill, and the hidden states of one answer.

Suffixes: `_T` sampled token, `_PD` token of a sequence and hidden size.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import numpy as safetensors_numpy
from safetensors import torch as safetensors_torch
from transformers import AutoConfig, AutoModelForCausalLM

from temper.learner.config import LearnerConfig
from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.vllm_scoring import ScoringEngine
from temper.rollout.expert_choices import Choices
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import wire_dtype

Prompt = tuple[int, ...]
Stream = dict[str, NDArray[np.float32]]
"""The hidden states of one sequence by the point between layers (`rollout/engines/runners/layer_recorder.py`), (P, D) each."""
EACH = 2
"""Answers per prompt, as in a group."""
AT_ONCE = 8
"""Sequences scored at once. Each token has logprobs over the whole vocabulary."""
END_S = 60.0
"""Deadline of an engine's end, in seconds."""
TEMPORARY = "temper-parity-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that can cause a logprob diff."""

    engine: EngineConfig
    learner: LearnerConfig
    sampling: Sampling = PLAIN

    @property
    def wire_rounds(self) -> bool:
        """Whether a push rounds the weights to less than both the trainer's and the engine's type."""
        wire = self.learner.wire_dtype
        is_lower = wire != "float32" and not (self.learner.bf16 and wire == "bfloat16")
        return is_lower and self.engine.dtype != wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """An answer as it was sampled, and as the engine scored it afterwards, in nats. `group` is the place of its prompt."""

    group: int
    prompt_ids: Prompt
    sampled_ids: tuple[int, ...]
    decoded_T: tuple[float, ...]
    sampling: Sampling
    prefill_T: tuple[float, ...] = ()
    experts: Choices | None = field(default=None, compare=False)

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return (*self.prompt_ids, *self.sampled_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedAnswer:
    """One answer with the engine's hidden states before its tokens, by decoding and by prefill.

    Both have one row for every token but the last. `decoding` is None if drafts were computed too.
    """

    answer: ScoredAnswer
    prefill: Stream
    decoding: Stream | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledAnswers:
    """The answers of one engine: `answers` sampled as configured, `plain` ones at temperature 1, and one with hidden states."""

    answers: list[ScoredAnswer]
    plain: list[ScoredAnswer]
    traced: TracedAnswer | None
    untraced_reason: str
    """Why there are no hidden states. Empty if there are."""


@contextmanager
def as_pushed(model: Path, setup: Setup) -> Iterator[Path]:
    """Yield a model directory with the weights that an engine has after a push.

    This is `model`, or a temporary copy with rounded weights if `learner.wire_dtype` rounds. Buffers are not pushed.
    """
    if not setup.wire_rounds:
        yield model
        return
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        buffers = dict(AutoModelForCausalLM.from_config(config, trust_remote_code=False).named_buffers())
    dtype = wire_dtype(setup.learner.wire_dtype)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        for path in sorted(model.iterdir()):
            copy = Path(folder) / path.name
            if path.suffix != ".safetensors":
                copy.symlink_to(path.resolve())
                continue
            tensors = safetensors_torch.load_file(path)
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and name not in buffers:
                    tensors[name] = tensor.to(dtype).to(tensor.dtype)
            safetensors_torch.save_file(tensors, copy, metadata={"format": "pt"})
        yield Path(folder)


async def sample_answers(
    model: Path, setup: Setup, prompts: Sequence[Prompt], *, tokens: int, end: int, progress: Progress
) -> SampledAnswers:
    """Start an engine, sample answers of at most `tokens` tokens, which `end` ends, score them and end the engine.

    Raise the errors of vLLM. It waits as long as vLLM does.
    """
    config = setup.engine.with_float32_head() if setup.learner.float32_head else setup.engine
    engine = ScoringEngine(
        model, config, version=WeightVersion(step=0), ends=(end,), record_experts=setup.learner.router_replay
    )
    try:
        await engine.start()
        traced, untraced_reason = await _traced(engine, prompts[0], tokens=tokens)
        is_plain = setup.sampling.temperature == 1 and not setup.sampling.truncates
        ways = [setup.sampling] if is_plain else [setup.sampling, PLAIN]
        count = SamplingCount("parity", asked=len(ways) * EACH * len(prompts), tokens=_counted(engine))
        async with sampling_shown(progress, count):
            sampled = [await _sampled(engine, way, prompts, tokens=tokens, count=count) for way in ways]
        plain = await _scored(engine, sampled[-1])
    finally:
        async with asyncio.timeout(END_S):
            await engine.close()
    return SampledAnswers(
        answers=plain if is_plain else sampled[0], plain=plain, traced=traced, untraced_reason=untraced_reason
    )


def _counted(engine: ScoringEngine) -> Callable[[], int]:
    """Return a counter of the tokens that an engine has sampled."""
    sampled = 0

    def tokens() -> int:
        nonlocal sampled
        sampled += engine.take_stats().sampled_tokens
        return sampled

    return tokens


async def _sampled(
    engine: ScoringEngine, sampling: Sampling, prompts: Sequence[Prompt], *, tokens: int, count: SamplingCount
) -> list[ScoredAnswer]:
    """Sample an answer to every prompt at once, then another one, which may hit the prefix cache."""

    async def answer(group: int, prompt: Prompt, seed: int) -> ScoredAnswer:
        asked = TurnRequest(prompt_ids=prompt, max_tokens=tokens, seed=seed, sampling=sampling)
        completion = await engine.generate(asked)
        count.finished += 1
        return _answer(group, prompt, completion, sampling)

    answers: list[ScoredAnswer] = []
    for seed in range(EACH):
        answers += await asyncio.gather(*(answer(group, prompt, seed) for group, prompt in enumerate(prompts)))
    return sorted(answers, key=lambda one: one.group)


def _answer(group: int, prompt: Prompt, completion: Completion, sampling: Sampling) -> ScoredAnswer:
    return ScoredAnswer(
        group=group,
        prompt_ids=prompt,
        sampled_ids=completion.token_ids,
        decoded_T=completion.logprobs_T,
        sampling=sampling,
        experts=completion.experts,
    )


async def _scored(engine: ScoringEngine, answers: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """Return answers with their log-probabilities by prefill."""

    async def scored(answer: ScoredAnswer) -> ScoredAnswer:
        scores = await engine.score(answer.ids)
        return replace(answer, prefill_T=tuple(scores[len(answer.prompt_ids) - 1 :]))

    found: list[ScoredAnswer] = []
    for first in range(0, len(answers), AT_ONCE):
        found += await asyncio.gather(*map(scored, answers[first : first + AT_ONCE]))
    return found


async def _traced(engine: ScoringEngine, prompt: Prompt, *, tokens: int) -> tuple[TracedAnswer | None, str]:
    """Sample and score one answer while the layers are recorded. If they cannot be recorded, return the reason."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        file = Path(folder) / "layers.safetensors"
        if untraced_reason := await engine.record_layers():
            return None, untraced_reason
        completion = await engine.generate(TurnRequest(prompt_ids=prompt, max_tokens=tokens, seed=0))
        answer = _answer(0, prompt, completion, PLAIN)
        decoding = await _recorded(engine, file, len(answer.ids) - 1)
        await engine.record_layers()
        (answer,) = await _scored(engine, [answer])
        prefill = await _recorded(engine, file, len(answer.ids))
    if prefill is None:
        return None, "the engine's passes have other tokens than the sequence"
    cut = {point: hidden_PD[:-1] for point, hidden_PD in prefill.items()}
    return TracedAnswer(answer=answer, prefill=cut, decoding=decoding), ""


async def _recorded(engine: ScoringEngine, file: Path, tokens: int) -> Stream | None:
    """Return the recorded hidden states. None if their token count is wrong."""
    rows = await engine.take_layers(file)
    stream: Stream = safetensors_numpy.load_file(file)
    return stream if {rows, *map(len, stream.values())} == {tokens} else None
