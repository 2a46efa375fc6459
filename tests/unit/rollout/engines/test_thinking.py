"""Thinking limits in real vLLM: injected tokens are marked, and all sampled ones agree with the trainer."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models
from support.plain_rank import rank_logprobs
from support.pushes import loaded

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.protocol import Completion, EngineStats, TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import WeightVersion

ENDS = (byte_tokenizer().eos_token_id,)
CONFIG = EngineConfig(max_model_len=256, max_sequences=64)
DRAFTING = replace(CONFIG, speculation="ngram")
TOLERANCE = 1e-5
"""Largest difference of a log-probability, in nats, in float32."""
LIMITS = [None, *(ThinkingLimit(tokens=tokens, grace=grace) for tokens in (0, 5, 17, 33) for grace in (0, 6))]
Passage = tuple[tuple[int, ...], ThinkingLimit | None, Completion]


def gap(rank: TrainerWorker, samples: list[Passage]) -> float:
    """Largest difference between engine and trainer over the sampled tokens. Injected ones have no log-probability."""
    whole = [(*prompt, *said.token_ids) for prompt, _, said in samples]
    expected = rank_logprobs(rank, [TrainingSample.supervised(ids=ids, trained_T=[False] * len(ids)) for ids in whole])
    largest = 0.0
    for (_, _, said), row in zip(samples, expected, strict=True):
        theirs = row[len(row) - len(said.token_ids) :]
        for logprob, forced, trainer in zip(said.logprobs_T, said.injected_T, theirs, strict=True):
            assert math.isnan(logprob) == forced
            largest = max(largest, 0.0 if forced else abs(logprob - trainer))
    return largest


def check_marks(tags: ThinkingTags, samples: list[Passage]) -> int:
    """Every completion has the closing exactly at the rule's place. Return the number of forced ends."""
    count = 0
    for prompt, limit, said in samples:
        forced_end = None
        if limit is not None:
            forced_end = tags.forced_end(said.token_ids, limit, opened=tags.is_opened_by(prompt))
        marked = [place for place, forced in enumerate(said.injected_T) if forced]
        if forced_end is None:
            assert not marked
            continue
        count += 1
        assert marked == list(range(forced_end.start, min(forced_end.end, len(said.token_ids))))
        assert tuple(said.token_ids[place] for place in marked) == forced_end.ids[: len(marked)]
    return count


def check_stats(stats: EngineStats, samples: list[Passage]) -> None:
    """The engine has counted exactly the tokens of these samples."""
    assert stats.sampled_tokens == sum(len(said.token_ids) for _, _, said in samples)
    assert stats.prompt_tokens == sum(len(prompt) for prompt, _, _ in samples)
    assert max(len(said.token_ids) for _, _, said in samples) <= stats.passes + stats.accepted_tokens
    assert stats.accepted_tokens <= stats.drafted_tokens
    assert 1 <= stats.running <= CONFIG.max_sequences
    assert 0 < stats.cache_use <= 1
    assert (stats.waiting, stats.preemptions) == (0.0, 0)


async def story(model_dir: Path, config: EngineConfig, *, forced: int) -> None:
    """Start an engine and check the limits in it."""
    tags = ThinkingTags(load_tokenizer(model_dir))
    engine = VllmEngine(model_dir, config, version=WeightVersion(step=0), ends=ENDS, tags=tags)
    await engine.start()
    try:
        await limits_hold(engine, model_dir, forced=forced, drafts=config.speculation != "off")
    finally:
        await engine.close()


async def limits_hold(engine: VllmEngine, model_dir: Path, *, forced: int = 12, drafts: bool = False) -> None:
    """Sample under many limits at once. Then push weights during thinking, and sample again."""
    tokenizer = load_tokenizer(model_dir)
    tags = ThinkingTags(tokenizer)
    opening = "<think>\n" if tags.is_opened_by_prompt else ""
    prompt = tuple(tokenizer(f"<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n{opening}")["input_ids"])
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    rank.load(str(model_dir), optim=OptimConfig(learning_rate=1e-2, warmup_steps=0), total_steps=10)
    engine.take_stats()

    async def sample(rounds: int, *, tokens: int) -> list[Passage]:
        wanted = [(prompt[number % 5 :], limit) for number in range(rounds) for limit in LIMITS]
        greedy = Sampling(temperature=0.0)  # the likeliest tokens of such a model soon repeat
        said = (
            engine.generate(
                TurnRequest(
                    prompt_ids=ids,
                    max_tokens=tokens,
                    seed=seed,
                    limit=limit,
                    sampling=greedy if drafts and seed % 2 else PLAIN,
                )
            )
            for seed, (ids, limit) in enumerate(wanted)
        )
        return [(*pair, completion) for pair, completion in zip(wanted, await asyncio.gather(*said), strict=True)]

    try:
        samples = await sample(3, tokens=48)
        stats = engine.take_stats()
        check_stats(stats, samples)
        assert (stats.accepted_tokens > 0) == drafts
        assert check_marks(tags, samples) >= forced
        assert gap(rank, samples) < TOLERANCE
        rows = [TrainingSample.supervised(ids=prompt, trained_T=[False, *[True] * (len(prompt) - 1)])]
        for _ in range(2):
            rank.train_step(
                build_batch(rows, ranks=1, micro_batch_tokens=512, pad_id=0).share(rank.rank),
                loss=LossConfig(objective="nll"),
            )
        manifest = rank.publish(1)
        assert manifest is not None
        running = asyncio.create_task(sample(3, tokens=150))
        async with asyncio.timeout(300):
            while not engine.take_stats().sampled_tokens:
                await asyncio.sleep(0.01)
        await loaded(engine, rank, manifest)
        through = await running
        assert check_marks(tags, through) >= forced
        mixed = [said for _, limit, said in through if limit is not None and set(said.versions_T) == {0, 1}]
        assert mixed  # the push came in the middle of their turns
        after = await sample(3, tokens=48)
        assert check_marks(tags, after) >= forced
        assert gap(rank, after) < TOLERANCE
    finally:
        rank.close()


def opening_itself(directory: Path) -> Path:
    """A model that rarely opens its thinking: answers without it are left alone."""
    model = tiny_models.qwen3(directory)
    template = (model / "chat_template.jinja").read_text(encoding="utf-8")
    opened = r"'<think>\n' if thinking else '<think></think>'"
    assert opened in template
    (model / "chat_template.jinja").write_text(template.replace(opened, "''"), encoding="utf-8")
    return model


@pytest.mark.slow  # test_vllm.py checks a hybrid's
@pytest.mark.parametrize(
    ("make", "config", "forced"),
    [(tiny_models.qwen3, DRAFTING, 12), (tiny_models.qwen3, CONFIG, 12), (opening_itself, CONFIG, 0)],
)
def test_thinking_ends_at_its_limit_and_tokens_agree(
    make: Callable[[Path], Path], config: EngineConfig, forced: int, tmp_path: Path
) -> None:
    asyncio.run(story(make(tmp_path / "model"), config, forced=forced))
