"""What an engine answers and scores: the same tokens by decoding and by prefill, and the layers of one answer.

Suffixes: `_T` one entry per sampled token, `_PD` token of a sequence and hidden size.
"""

import asyncio
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown
from temper.orchestrator.tools.debug.parity.setup import Setup
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.vllm_scoring import ScoringEngine
from temper.rollout.expert_choices import Choices
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import WeightVersion

Stream = dict[str, NDArray[np.float32]]
"""The hidden states of one sequence by the point between layers (`rollout/engines/runners/layer_recorder.py`), (P, D) each."""
EACH = 2
"""Answers to each prompt, so that they share what a group shares."""
AT_ONCE = 8
"""Sequences that are scored at once: each has a whole row of the vocabulary for every token."""
END_S = 60.0
"""Deadline of an engine's end, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """An answer as it was sampled, and as the engine scored it afterwards, in nats. `group` is the place of its prompt."""

    group: int
    prompt_ids: tuple[int, ...]
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
class Watched:
    """One answer and what went through the engine's layers in the passes before its tokens, by decoding and by prefill.

    The last token has been through no pass, so that both have a row for every id but that. `decoding` is None where drafts
    were computed too.
    """

    answer: ScoredAnswer
    prefill: Stream
    decoding: Stream | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one engine gave: answers as they are sampled in the setup, plain ones where that is not plain, and its layers."""

    answers: list[ScoredAnswer]
    plain: list[ScoredAnswer]
    watched: Watched | None
    why_not: str
    """Why its layers are not seen; empty where they are."""


def ask(
    model: Path,
    setup: Setup,
    prompts: Sequence[tuple[int, ...]],
    *,
    tokens: int,
    end: int,
    progress: Progress | None = None,
) -> Answered:
    """Start an engine, sample answers of at most `tokens` tokens, which `end` ends, score them and end it.

    Raise the errors of vLLM. It waits as long as vLLM does.
    """
    shown = progress or Progress(stream=io.StringIO())
    return asyncio.run(_ask(model, setup, prompts, tokens=tokens, end=end, progress=shown))


async def _ask(
    model: Path, setup: Setup, prompts: Sequence[tuple[int, ...]], *, tokens: int, end: int, progress: Progress
) -> Answered:
    config = setup.engine.with_float32_head() if setup.learner.float32_head else setup.engine
    engine = ScoringEngine(
        model, config, version=WeightVersion(step=0), ends=(end,), record_experts=setup.learner.router_replay
    )
    try:
        await engine.start()
        watched, why_not = await _watched(engine, prompts[0], tokens=tokens)
        plain = setup.sampling.temperature == 1 and not setup.sampling.truncates
        ways = [setup.sampling] if plain else [setup.sampling, PLAIN]
        count = SamplingCount("parity", asked=len(ways) * EACH * len(prompts), tokens=_counted(engine))
        async with sampling_shown(progress, count):
            answers, *more = [await _sampled(engine, way, prompts, tokens=tokens, count=count) for way in ways]
        others = more[0] if more else answers
        scored = await _scored(engine, others)
    finally:
        async with asyncio.timeout(END_S):
            await engine.close()
    return Answered(
        answers=scored if plain else answers,
        plain=scored,
        watched=watched,
        why_not=why_not,
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
    engine: ScoringEngine,
    sampling: Sampling,
    prompts: Sequence[tuple[int, ...]],
    *,
    tokens: int,
    count: SamplingCount,
) -> list[ScoredAnswer]:
    """Sample one answer to every prompt at once, then another one: by then an engine may know the prompts."""
    answers = []
    for seed in range(EACH):
        asked = [TurnRequest(prompt_ids=ids, max_tokens=tokens, seed=seed, sampling=sampling) for ids in prompts]
        said = await asyncio.gather(*(_generated(engine, one, count) for one in asked))
        answers += [
            _answer(group, ids, one, sampling) for group, (ids, one) in enumerate(zip(prompts, said, strict=True))
        ]
    return sorted(answers, key=lambda answer: answer.group)


async def _generated(engine: ScoringEngine, asked: TurnRequest, count: SamplingCount) -> Completion:
    said = await engine.generate(asked)
    count.finished += 1
    return said


def _answer(group: int, prompt_ids: tuple[int, ...], said: Completion, sampling: Sampling) -> ScoredAnswer:
    return ScoredAnswer(
        group=group,
        prompt_ids=prompt_ids,
        sampled_ids=said.token_ids,
        decoded_T=said.logprobs_T,
        sampling=sampling,
        experts=said.experts,
    )


async def _scored(engine: ScoringEngine, answers: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    found: list[ScoredAnswer] = []
    for first in range(0, len(answers), AT_ONCE):
        some = answers[first : first + AT_ONCE]
        scores = await asyncio.gather(*(engine.score(one.ids) for one in some))
        found += [_with_prefill(one, values) for one, values in zip(some, scores, strict=True)]
    return found


def _with_prefill(answer: ScoredAnswer, scores: Sequence[float]) -> ScoredAnswer:
    return replace(answer, prefill_T=tuple(scores[len(answer.prompt_ids) - 1 :]))


async def _watched(engine: ScoringEngine, prompt: tuple[int, ...], *, tokens: int) -> tuple[Watched | None, str]:
    """Sample and score one answer alone while the layers are recorded; returns why that can't be, where it can't."""
    with tempfile.TemporaryDirectory(prefix="temper-parity-") as folder:
        file = Path(folder) / "layers.safetensors"
        if why_not := await engine.record_layers():
            return None, why_not
        said = await engine.generate(TurnRequest(prompt_ids=prompt, max_tokens=tokens, seed=0))
        decoding = _stream(file, await engine.take_layers(file), len(prompt) + len(said.token_ids) - 1)
        answer = _answer(0, prompt, said, PLAIN)
        await engine.record_layers()
        answer = _with_prefill(answer, await engine.score(answer.ids))
        prefill = _stream(file, await engine.take_layers(file), len(answer.ids))
    if prefill is None:
        return None, "the engine's passes have other tokens than the sequence"
    cut = {point: hidden_PD[:-1] for point, hidden_PD in prefill.items()}
    return Watched(answer=answer, prefill=cut, decoding=decoding), ""


def _stream(file: Path, rows: int, wanted: int) -> Stream | None:
    """Read what was recorded; None where it is of more tokens than those that are wanted."""
    stream: Stream = load_file(file)
    return stream if rows == wanted and all(len(one) == wanted for one in stream.values()) else None
