"""Real vLLM: its samples agree with the trainer before, during and after a weight push."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.engine_sampling import sampling_is_exact
from support.plain_rank import rank_logprobs
from support.pushes import loaded, offered
from transformers import AutoModelForCausalLM, PreTrainedModel
from unit.rollout.engines.test_thinking import limits_hold

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.clock import Clock
from temper.envs.core.process import WorkerDied
from temper.envs.core.task import EnvRef, Task
from temper.envs.source import open_source
from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample, samples_from_groups
from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.config import EpisodeLimits, RolloutConfig
from temper.rollout.engines.config import Dtype, EngineConfig
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.rollout_arguments import HYBRID_MATCH, rollout_arguments
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.engines.vllm_worker import _filled
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine
from temper.rollout.weights.manifest import WeightManifest, WholeWeightsNeeded

ENDS = (byte_tokenizer().eos_token_id,)
CONFIG = EngineConfig(max_model_len=512, max_sequences=32)
BLOCK = 128
"""Tokens of a cache block on a CPU. Models without states share prefixes in whole blocks."""
SLOW = pytest.mark.slow
TOLERANCE = 1e-5
"""Largest difference of a log-probability, in nats, in float32."""

Story = Callable[[VllmEngine, Path], Awaitable[None]]
"""A test with an engine that has the weights of a model directory."""
Answers = list[tuple[tuple[int, ...], Completion]]
"""Prompts and their answers."""


def largest_gap(samples: Answers, expected: Sequence[Sequence[float]]) -> float:
    return max(
        abs(ours - theirs)
        for (_, said), row in zip(samples, expected, strict=True)
        for ours, theirs in zip(said.logprobs_T, row[len(row) - len(said.token_ids) :], strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One model in an engine and in a trainer."""

    engine: VllmEngine
    rank: TrainerWorker
    prompts: list[tuple[int, ...]]

    def train(self) -> None:
        """Two steps on the prompts, with a large learning rate."""
        rows = [TrainingSample.supervised(ids=ids, trained_T=[False, *[True] * (len(ids) - 1)]) for ids in self.prompts]
        batch = build_batch(rows, ranks=1, micro_batch_tokens=512, pad_id=0)
        for _ in range(2):
            self.rank.train_step(batch.share(0), loss=LossConfig(objective="nll"))

    def publish(self, version: int) -> WeightManifest:
        manifest = self.rank.publish(version)
        assert manifest is not None
        return manifest

    def model(self) -> PreTrainedModel:
        """A transformers model with the trainer's current weights."""
        assert self.rank.engine is not None
        trained = self.rank.engine.model
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(trained.config).eval()
        plain.load_state_dict(trained.state_dict())
        return plain

    async def sample(self, count: int, *, tokens: int) -> Answers:
        prompts = [self.prompts[number % len(self.prompts)] for number in range(count)]
        said = (
            self.engine.generate(TurnRequest(prompt_ids=ids, max_tokens=tokens, seed=seed, name=f"answer {seed}"))
            for seed, ids in enumerate(prompts)
        )
        return list(zip(prompts, await asyncio.gather(*said), strict=True))

    async def sampling(self, count: int, *, tokens: int) -> asyncio.Task[Answers]:
        """Answers in flight, of which at least one has a token."""
        running = asyncio.create_task(self.sample(count, tokens=tokens))
        async with asyncio.timeout(300.0):
            while not any(
                (said := self.engine.partial_completion(f"answer {seed}")) and said.token_ids for seed in range(count)
            ):
                assert not running.done()
                await asyncio.sleep(0.001)
        return running

    def gap(self, samples: Answers) -> float:
        """Largest log-probability difference between engine and trainer."""
        whole = [(*prompt, *said.token_ids) for prompt, said in samples]
        rows = [TrainingSample.supervised(ids=ids, trained_T=[False] * len(ids)) for ids in whole]
        expected = rank_logprobs(self.rank, rows)
        return largest_gap(samples, expected)


async def a_group_is_given_up(engine: VllmEngine, model_dir: Path) -> None:
    """A group cancelled during sampling leaves the engine idle."""
    limits = EpisodeLimits(turn_tokens=150, total_tokens=256)
    config = RolloutConfig(engine=CONFIG, limits=limits)
    worker = RolloutWorker(config, seed=1, make_engine=make_engine, make_agent_server=make_agent_server)
    tokenizer = load_tokenizer(model_dir)
    worker.attach(engine, Renderer(tokenizer, ThinkingConfig()), ThinkingTags.find(tokenizer, closing=None))
    task = open_source(bind("math", EnvConfig()), split="train", seed=1).task(0)
    ticket = Ticket(number=1, task=task, admitted=WeightVersion(step=0))
    group = asyncio.create_task(worker.run_group(ticket, 32))
    async with asyncio.timeout(300.0):
        while not any(one.turn for partial in await worker.groups_in_flight() for one in partial.unfinished.values()):
            await asyncio.sleep(0.001)
    assert engine._llm.get_num_unfinished_requests() > 0
    group.cancel()
    await asyncio.wait({group})
    assert group.cancelled()
    assert engine._llm.get_num_unfinished_requests() == 0
    await asyncio.sleep(1.5)  # the current step; processes of one engine look for more for a second
    engines = psutil.Process().children(recursive=True)
    before = sum(sum(process.cpu_times()[:2]) for process in engines)
    await asyncio.sleep(0.5)
    assert sum(sum(process.cpu_times()[:2]) for process in engines) - before < 0.25


async def a_checkpoint_is_read(setup: Setup, checkpoint: Path) -> None:
    """An engine reads the learner's checkpoint, refuses a truncated file, and detects a missing weight."""
    setup.train()
    setup.rank.save(str(checkpoint))
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"model.safetensors has \d+ bytes"):
        await setup.engine.load_checkpoint(checkpoint, WeightVersion(step=9))
    assert len(await setup.sample(4, tokens=16)) == 4  # still serving
    file.write_bytes(whole)
    assert await setup.engine.load_checkpoint(checkpoint, WeightVersion(step=9)) == WeightVersion(step=9)
    assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE
    weights = load_file(file)
    del weights[min(name for name in weights if "norm" in name)]
    save_file(weights, file)
    with pytest.raises(Exception, match="lacks 1 weights of the model, such as .*norm"):
        await setup.engine.load_checkpoint(checkpoint, WeightVersion(step=10))


async def a_push_that_lacks_a_weight_fails(setup: Setup) -> None:
    """A push without a layer's weight, or without a part of a fused one, is not confirmed as its version."""
    for version, name in ((11, ".o_proj."), (12, ".k_proj.")):
        whole = setup.publish(version)
        kept = [at for at, each in enumerate(whole.names) if name not in each]
        assert len(kept) < len(whole.names)
        fields: dict[str, Any] = {
            field: tuple(getattr(whole, field)[at] for at in kept) for field in ("names", "dtypes", "shapes", "offsets")
        }
        with pytest.raises(WorkerDied, match=r"lacks \d weights of the model"):
            await loaded(setup.engine, setup.rank, replace(whole, **fields))
        assert await setup.engine.version() != whole.weight_version


def each_token_is_compared_with_what_sampled_it(
    older: PreTrainedModel, newer: PreTrainedModel, samples: Answers
) -> None:
    """The learner divides by the probability under each token's version, computed over the cache of earlier versions."""
    task = Task(env=EnvRef(name="math"), key="0", messages=({"role": "user", "content": "?"},), spec={})
    through = [(ids, said) for ids, said in samples if 0 < said.versions_T.count(1) < len(said.token_ids)]
    assert through
    for prompt, said in through:
        turn = Turn(
            context_ids=as_ids(prompt),
            sampled_ids=as_ids(said.token_ids),
            logprobs_T=as_floats(said.logprobs_T),
            versions_T=as_ids(said.versions_T),
            injected_T=as_marks(said.injected_T),
            text="",
        )
        answer = Trajectory(task=task, turns=(turn,), stop=Stop.ENV, reward=0.0)
        ticket = Ticket(number=0, task=task, admitted=WeightVersion(step=1))
        (sample,) = samples_from_groups([Group(ticket=ticket, trajectories=(answer,))], advantage="dr_grpo")
        own = said.versions_T.count(1)
        with torch.no_grad():
            old = older(torch.tensor([[*prompt, *said.token_ids[: own - 1]]]), use_cache=True)
            new = newer(torch.tensor([said.token_ids[own - 1 : -1]]), past_key_values=old.past_key_values)
        logits = torch.cat((old.logits[0, len(prompt) - 1 :], new.logits[0]))
        expected = logits.log_softmax(-1)[torch.arange(len(logits)), torch.tensor(said.token_ids)]
        divided_by = torch.tensor(sample.behaviour_T[len(prompt) :])
        assert (expected - divided_by).abs().max() < TOLERANCE


async def prefixes_are_computed_once(setup: Setup, *, unit: int) -> None:
    """Answers to a long prompt share its computation, up to a multiple of `unit`, while the weights stay the same."""
    long = replace(setup, prompts=[ids for ids in setup.prompts if len(ids) > BLOCK])
    assert len(long.prompts) == 1
    setup.engine.take_stats()
    assert setup.gap(await long.sample(1, tokens=16)) < TOLERANCE
    assert setup.engine.take_stats().cached_tokens == 0  # the first one with these weights
    assert setup.gap(await long.sample(4, tokens=16)) < TOLERANCE
    assert setup.engine.take_stats().cached_tokens == 4 * ((len(long.prompts[0]) - 1) // unit * unit)


async def a_push_meets_new_requests(setup: Setup, newer: WeightManifest) -> Answers:
    """Requests that wait in the queue when a push begins, or arrive in its pause, use no cache of the old weights.

    Return the answers of requests that run meanwhile.
    """
    engine = setup.engine
    (long,) = [ids for ids in setup.prompts if len(ids) > BLOCK]
    asked = [TurnRequest(prompt_ids=ids, max_tokens=16, seed=7) for ids in (long, long[::-1])]
    for request in asked:
        await engine.generate(request)  # its prompt is in the cache
    short = replace(setup, prompts=[ids for ids in setup.prompts if len(ids) < BLOCK])
    running = await short.sampling(CONFIG.max_sequences + 8, tokens=150)
    engine.take_stats()
    clock = Clock(100.0)
    clock.turn(on=True)
    asked[0] = replace(asked[0], clock=clock)
    waits = asyncio.create_task(engine.generate(asked[0]))

    async def in_the_pause() -> Completion:
        async with asyncio.timeout(300.0):
            while not await engine._llm.is_paused():
                await asyncio.sleep(0.001)
        left = clock.left_s
        await asyncio.sleep(0.001)
        assert clock.left_s == left  # paused since the request was made
        return await engine.generate(asked[1])

    arrives = asyncio.create_task(in_the_pause())
    assert await loaded(engine, setup.rank, newer) == newer.weight_version
    said = await asyncio.gather(waits, arrives)
    through = await running
    assert clock.left_s < 100.0
    assert engine.take_stats().cached_tokens == 0
    for request, early in zip(asked, said, strict=True):
        late = await engine.generate(request)
        assert early.token_ids == late.token_ids
        assert set(early.versions_T) == {newer.version}
        assert np.allclose(early.logprobs_T, late.logprobs_T, rtol=0, atol=TOLERANCE)
    assert setup.gap([(request.prompt_ids, one) for request, one in zip(asked, said, strict=True)]) < TOLERANCE
    return through


async def the_learner_has_its_phase(setup: Setup) -> None:
    """A sleeping engine has released its cache, answers, loads weights, and later continues its frozen requests."""
    engine, rank = setup.engine, setup.rank
    running = await setup.sampling(4, tokens=300)
    clocks = [Clock(100.0) for _ in range(4)]
    timed = []
    for seed, clock in enumerate(clocks):
        clock.turn(on=True)
        request = TurnRequest(prompt_ids=setup.prompts[0], max_tokens=300, seed=seed, clock=clock)
        timed.append(asyncio.create_task(engine.generate(request)))
    while not any(clock.left_s < 100.0 for clock in clocks):  # until a first token
        await asyncio.sleep(0.001)
    before = await engine.memory_usage()
    await engine.set_onloaded(weights=False, cache=False, limit_s=300.0)
    left = {clock: clock.left_s for clock, one in zip(clocks, timed, strict=True) if not one.done()}
    assert left
    asleep = await engine.memory_usage()
    assert (asleep.weights, asleep.cache) == (0, 0)
    assert before.main - asleep.main > 0.8 * before.cache > 2**29  # all of the gigabyte that is set
    assert await engine.version() == WeightVersion(step=2)
    setup.train()
    rank.set_onloaded(weights=True, states=False)
    await engine.set_onloaded(weights=True, cache=False, limit_s=300.0)
    assert await loaded(engine, rank, setup.publish(3)) == WeightVersion(step=3)
    rank.set_onloaded(weights=False, states=False)
    assert not running.done()
    assert {clock: clock.left_s for clock in left} == left
    await engine.set_onloaded(weights=True, cache=True, limit_s=300.0)
    await asyncio.gather(*timed)
    assert all(clock.left_s < before for clock, before in left.items())
    assert {len(said.token_ids) for _, said in await running} <= set(range(1, 301))
    after = await setup.sample(8, tokens=24)
    rank.set_onloaded(weights=True, states=True)
    assert setup.gap(after) < TOLERANCE
    assert all(set(said.versions_T) == {3} for _, said in after)


async def in_one_engine(model_dir: Path, config: EngineConfig, stories: Sequence[Story]) -> None:
    """Run several tests with one engine. Each begins with the weights of the model."""
    tags = ThinkingTags(load_tokenizer(model_dir))
    engine = VllmEngine(model_dir, config, version=WeightVersion(step=0), ends=ENDS, tags=tags)
    await engine.start()
    try:
        for number, each in enumerate(stories):
            if number:
                await engine.load_checkpoint(model_dir, WeightVersion(step=0))
            await each(engine, model_dir)
    finally:
        await engine.close()


async def pushes(engine: VllmEngine, model_dir: Path, *, unit: int) -> None:
    """Sample, train, push, sample again, and push once more while requests are in flight. Prompts match in units."""
    tokenizer = load_tokenizer(model_dir)
    texts = ["2+2=?", "What is the capital of Portugal?", "a", "def f(x):\n    return x\n" * 4, "ab" * (BLOCK - 50)]
    prompts = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    rank.load(str(model_dir), optim=OptimConfig(learning_rate=1e-2, warmup_steps=0), total_steps=10)
    setup = Setup(engine=engine, rank=rank, prompts=[ids for ids in prompts if len(ids) > 1])
    try:
        await prefixes_are_computed_once(setup, unit=unit)
        before = await setup.sample(8, tokens=24)
        assert setup.gap(before) < TOLERANCE
        assert all(set(said.versions_T) == {0} for _, said in before)

        setup.train()
        assert setup.gap(before) > 100 * TOLERANCE  # the trainer has changed, the engine has not
        assert await loaded(engine, rank, setup.publish(1)) == WeightVersion(step=1)
        await prefixes_are_computed_once(setup, unit=unit)
        after = await setup.sample(8, tokens=24)
        assert setup.gap(after) < TOLERANCE
        assert all(set(said.versions_T) == {1} for _, said in after)

        older = setup.model() if unit == BLOCK else None  # transformers can't continue a hybrid
        setup.train()
        newer = setup.publish(2)
        through = await a_push_meets_new_requests(setup, newer)
        assert len(through) == CONFIG.max_sequences + 8  # none was lost
        long = [said for _, said in through if len(said.token_ids) == 150]
        assert long
        assert all(list(said.versions_T) == sorted(said.versions_T) for said in long)
        assert any(said.versions_T[0] == 1 and said.versions_T[-1] == 2 for said in long)
        if older is not None:
            each_token_is_compared_with_what_sampled_it(older, setup.model(), through)
        assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE

        await the_learner_has_its_phase(setup)
        damaged = setup.publish(4)
        Path(str(offered(rank, damaged))).write_bytes(b"\x00" * damaged.nbytes)
        with pytest.raises(ValueError, match="checksum"):
            await loaded(engine, rank, damaged)
        assert await engine.version() == WeightVersion(step=3)
        assert len(await setup.sample(4, tokens=16)) == 4  # still serving
        await a_group_is_given_up(engine, model_dir)
        assert len(await setup.sample(4, tokens=16)) == 4
        await a_checkpoint_is_read(setup, model_dir.parent / "checkpoint")
        await a_push_that_lacks_a_weight_fails(setup)
    finally:
        rank.close()


def adapted(engine: VllmEngine, model_dir: Path) -> Setup:
    """The engine with a rank that trains adapters alone."""
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig(lora=LoraConfig(rank=4, alpha=16)))
    rank.load(str(model_dir), optim=OptimConfig(learning_rate=2e-2, warmup_steps=0), total_steps=10)
    assert rank.merge_reason() == ""
    return Setup(engine=engine, rank=rank, prompts=[tuple(range(5, 40)), (9, 8, 7)])


async def adapters_arrive(setup: Setup, *, versions: Sequence[int]) -> WeightManifest:
    """Whole weights as version 1, then adapters alone, also during sampling. Return the last push."""
    engine, rank = setup.engine, setup.rank
    assert await loaded(engine, rank, setup.publish(1)) == WeightVersion(step=1)
    partial = await setup.sample(4, tokens=16)
    assert setup.gap(partial) < TOLERANCE
    for version in versions:
        setup.train()
        assert setup.gap(partial) > 100 * TOLERANCE  # missing adapters would be visible
        alone = setup.publish(version)
        assert alone.adapted is not None
        assert alone.sent_bytes < alone.bytes_with_base / 8
        running = await setup.sampling(4, tokens=400)
        assert await loaded(engine, rank, alone) == WeightVersion(step=version)
        assert any(set(said.versions_T) == {version - 1, version} for _, said in await running)
        assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE
    return alone


async def adapters(engine: VllmEngine, model_dir: Path) -> None:
    """Push adapters once."""
    setup = adapted(engine, model_dir)
    try:
        await adapters_arrive(setup, versions=(2,))
    finally:
        setup.rank.close()


async def adapters_and_a_new_engine(model_dir: Path, config: EngineConfig) -> None:
    """Push adapters twice, then to a replacement of the engine, which needs the base weights too."""
    engine = VllmEngine(model_dir, config, version=WeightVersion(step=0), ends=ENDS)
    await engine.start()
    setup = adapted(engine, model_dir)
    try:
        alone = await adapters_arrive(setup, versions=(2, 3))
        await engine.close()
        engine = VllmEngine(model_dir, config, version=WeightVersion(step=0), ends=ENDS)
        await engine.start()
        again = replace(setup, engine=engine)
        with pytest.raises(WholeWeightsNeeded, match="this engine holds none"):
            await loaded(engine, setup.rank, alone)
        assert await loaded(engine, setup.rank, alone.with_base()) == WeightVersion(step=3)
        assert again.gap(await again.sample(4, tokens=16)) < TOLERANCE
        await a_checkpoint_is_read(again, model_dir.parent / "checkpoint")
    finally:
        setup.rank.close()
        await engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "config"),
    [(tiny_models.qwen3_tied, CONFIG), (tiny_models.qwen3, replace(CONFIG, tensor_parallel=2))],
    ids=["qwen3_tied", "qwen3 on two"],
)
def test_an_engine_with_adapters_agrees_with_the_trainer(
    make: Callable[[Path], Path], config: EngineConfig, tmp_path: Path
) -> None:
    asyncio.run(adapters_and_a_new_engine(make(tmp_path / "model"), config))


HYBRID, CACHED = partial(pushes, unit=HYBRID_MATCH), partial(pushes, unit=BLOCK)


@pytest.mark.parametrize(
    ("make", "config", "stories"),
    [
        pytest.param(tiny_models.nemotron_h, CONFIG, [adapters, limits_hold, HYBRID], id="nemotron_h"),
        pytest.param(
            tiny_models.nemotron_h, replace(CONFIG, tensor_parallel=2), [HYBRID], id="nemotron_h on two", marks=SLOW
        ),
        pytest.param(tiny_models.qwen3, CONFIG, [sampling_is_exact, CACHED], id="qwen3"),
        pytest.param(tiny_models.qwen3, replace(CONFIG, tensor_parallel=2), [CACHED], id="qwen3 on two", marks=SLOW),
        *(
            pytest.param(make, CONFIG, [CACHED], id=make.__name__, marks=SLOW)
            for make in (tiny_models.llama, tiny_models.qwen3_tied, tiny_models.gemma2, tiny_models.gemma3)
        ),
    ],
)
@pytest.mark.timeout(1800)
def test_engine_and_trainer_agree(
    make: Callable[[Path], Path], config: EngineConfig, stories: Sequence[Story], tmp_path: Path
) -> None:
    """With thinking limits, with adapters, and before, during and after pushes."""
    asyncio.run(in_one_engine(make(tmp_path / "model"), config, stories))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (EngineConfig(extra={"kv_cache_dtyp": "fp8"}), "extra.kv_cache_dtyp: .*kv_cache_dtype"),
        (
            EngineConfig(extra={"kv_cache_dtype": "bfloat16"}),
            "kv_cache_dtype=bfloat16 .*float32.*rollout.engine.dtype=bfloat16",
        ),
        (EngineConfig(dtype="bfloat16", extra={"kv_cache_dtype": "float16"}), "kv_cache_dtype=float16 .*bfloat16"),
        (EngineConfig(pipeline_parallel=2), "pipeline_parallel=2"),
        (EngineConfig(runner="v2"), "runner=v2.*Triton"),
        (EngineConfig(speculation="mtp"), "speculation=mtp"),
        (EngineConfig(speculation="ngram"), "speculation=ngram.*Mamba"),
    ],
)
def test_an_engine_refuses_what_vllm_does_not_know_or_can_not_do(
    config: EngineConfig, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=why.replace("?", r"\?")):
        VllmEngine(tiny_models.nemotron_h(tmp_path / "model"), config, version=WeightVersion(step=0), ends=ENDS)


@pytest.mark.parametrize(("dtype", "cache"), [("bfloat16", "bfloat16"), ("float32", "auto"), ("float32", "fp8")])
def test_a_cache_in_the_type_of_the_model_or_in_fp8_is_taken(dtype: Dtype, cache: str, tmp_path: Path) -> None:
    config = EngineConfig(dtype=dtype, extra={"kv_cache_dtype": cache, "block_size": 32})
    arguments = rollout_arguments(tiny_models.qwen3(tmp_path / "model"), config, closing=None, record_experts=False)
    assert (arguments.kv_cache_dtype, arguments.block_size, arguments.enable_prefix_caching) == (cache, 32, True)


def test_an_output_layer_in_float32_reaches_vllm(tmp_path: Path) -> None:
    config = EngineConfig(dtype="bfloat16", extra={"hf_overrides": {"rope_theta": 7.0}})
    types = []
    for one in (config, config.with_float32_head()):
        arguments = rollout_arguments(tiny_models.qwen3(tmp_path / "model"), one, closing=None, record_experts=False)
        model = arguments.create_model_config()
        types.append(model.head_dtype)
        assert model.hf_config.rope_theta == 7.0
    assert types == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize(
    ("make", "config", "unit"),
    [
        (tiny_models.nemotron_h, EngineConfig(), 16),
        (tiny_models.nemotron_h, EngineConfig(extra={"prefix_match_unit": 32}), 32),
        (tiny_models.nemotron_h, EngineConfig(prefix_caching="off"), None),
        (tiny_models.qwen3, EngineConfig(), None),
    ],
)
@pytest.mark.parametrize("on_cpu", [True, False])
def test_prefixes_of_hybrids_match_inside_of_blocks(
    make: Callable[[Path], Path],
    config: EngineConfig,
    unit: int | None,
    on_cpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("temper.rollout.engines.rollout_arguments.ON_CPU", on_cpu)
    arguments = rollout_arguments(make(tmp_path / "model"), config, closing=None, record_experts=False)
    assert (arguments.prefix_match_unit, arguments.enable_prefix_caching) == (unit, config.prefix_caching != "off")


def test_other_hybrids_on_cpus_cache_no_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temper.rollout.engines.rollout_arguments.CACHED_ON_CPU", ())
    model = tiny_models.nemotron_h(tmp_path / "model")
    assert not rollout_arguments(model, EngineConfig(), closing=None, record_experts=False).enable_prefix_caching
    with pytest.raises(ValueError, match=r"prefix_caching=on.*Mamba"):
        rollout_arguments(model, EngineConfig(prefix_caching="on"), closing=None, record_experts=False)


def test_reloaded_layers_are_detected() -> None:
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload, record_metadata_for_reloading

    model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 3, bias=False) for name in ("whole", "lacking")})
    record_metadata_for_reloading(model)
    initialize_layerwise_reload(model)
    parameter: Any = model["whole"].weight
    parameter.weight_loader(parameter, torch.ones(3, 4))
    assert _filled(model) == {"whole.weight"}
