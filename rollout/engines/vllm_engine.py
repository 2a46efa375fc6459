"""vLLM as a rollout engine."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any

import temper.rollout.deferred_imports  # noqa: F401

import numpy as np

from temper.envs.core.errors import describe_error
from temper.envs.core.process import MemoryUsage, WorkerDied
from temper.rollout.budget.rule import ThinkingTags, extra_args
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.engine_process import EngineProcess
from temper.rollout.engines.protocol import Completion, EngineStats, TurnRequest, cut_at_stop
from temper.rollout.engines.scratch_folder import ScratchFolder
from temper.rollout.engines.vllm_settings import ON_CPU, limit_cpu, prepare_environment
from temper.rollout.expert_choices import Choices, pad_choices
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.buckets import BucketGroup, IncomingWeights
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.weight_files import require_complete

prepare_environment(pushes=True)  # vLLM reads it at import

from vllm import SamplingParams, envs
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.inputs import TokensInput, tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from temper.rollout.engines.core_process import light_core
from temper.rollout.engines.hybrid_prefixes import PromptScheduler
from temper.rollout.engines.rollout_arguments import rollout_arguments
from temper.rollout.engines.vllm_stats import StatsRecorder, TurnClocks


def request_params(request: TurnRequest, *, ends: Sequence[int]) -> SamplingParams:
    """Return vLLM's sampling parameters for a turn. Its prefix is a part of the prompt.

    Only `ends` end a turn: the model's files may disagree with its chat template. Text is decoded only to find stop
    strings, and then with special tokens.
    """
    sampling, limit = request.sampling, request.limit
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        ignore_eos=True,
        stop_token_ids=list(ends),
        max_tokens=request.max_tokens,
        seed=request.seed,
        logprobs=0,
        flat_logprobs=True,  # else an object a token
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=None if limit is None else extra_args(limit, prefix_tokens=len(request.prefix_ids)),
        skip_clone=True,  # these objects are not shared, so vLLM need not copy them
    )


def completion(
    ids: tuple[int, ...],
    logprobs: FlatLogprobs,
    versions: Sequence[tuple[str, int]],
    *,
    injected_T: tuple[bool, ...],
    finished: bool,
    experts: Choices | None = None,
) -> Completion:
    """Return the tokens with their log-probabilities. `versions` has each weight version with the index of its first token."""
    sampled = [(logprobs.token_ids[at], logprobs.logprobs[at]) for at in logprobs.start_indices]
    assert tuple(token for token, _ in sampled) == ids
    ends = [*(start for _, start in versions[1:]), len(ids)]
    return Completion(
        token_ids=ids,
        logprobs_T=tuple(nan if forced else value for (_, value), forced in zip(sampled, injected_T, strict=True)),
        versions_T=tuple(
            int(version)
            for (version, start), end in zip(versions, ends[: len(versions)], strict=True)
            for _ in range(start, end)
        ),
        injected_T=injected_T,
        finished=finished,
        experts=experts,
    )


LEVEL = 1
WEIGHTS, CACHE = "weights", "kv_cache"
"""vLLM's tags for parts of its sleep mode."""


class VllmEngine:
    """An `Engine` with vLLM's asynchronous engine, in this process and one child."""

    _grace_s: float | None = None
    """Seconds in which its processes may end by themselves. None is vLLM's default."""

    def __init__(
        self,
        model_dir: Path,
        config: EngineConfig,
        *,
        version: WeightVersion,
        ends: tuple[int, ...],
        tags: ThinkingTags | None = None,
        record_experts: bool = False,
        sleeps: bool = False,
        on_pass: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        """Only `ends` end a turn. Thinking limits need `tags`.

        With `record_experts` no graph is compiled or captured. With `sleeps` the engine shares its device. `on_pass` is
        called after each pass.
        """
        self._config = config
        self._ends = ends
        self._tags = tags
        self._record_experts = record_experts
        self._initial = version
        self._numbers = itertools.count()
        self._limited: dict[str, TurnRequest] = {}
        """Running requests with a thinking limit, by name."""
        self._salted: dict[str, int] = {}
        """The weight count (`_served`) of each running request's cached prompt, by name."""
        self._receiver = WeightReceiver()
        self._on_pass = on_pass
        self._clocks = TurnClocks(lambda request: self._sampled_tokens(request) > 0)
        self._stats = StatsRecorder(on_pass=self._passed)
        envs.disable_envs_cache()  # an earlier engine of this process may have set other values
        limit_cpu(threads=config.threads, memory_gib=config.memory_gib)
        closing = None if tags is None else tags.closing
        arguments = rollout_arguments(model_dir, config, closing=closing, record_experts=record_experts, sleeps=sleeps)
        self._expert_layers: list[int] = []
        self._served = 0
        """Number of weight loads. Only prompts of the same weights share cached blocks."""
        self._scratch = ScratchFolder()
        with self._scratch.use(), light_core():
            self._llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[lambda _config, _index: self._stats])
        assert self._llm.logger_manager is not None
        self._process = EngineProcess(lambda: self._llm.errored, raised=EngineDeadError)
        self._has_weights = self._has_cache = True
        """Whether weights and cache are on the device."""
        # vLLM adds a logger with forty Prometheus metrics, which are unused.
        self._llm.logger_manager.stat_loggers = self._llm.logger_manager.stat_loggers[:1]

    @property
    def llm(self) -> AsyncLLM:
        """vLLM's engine, for its routes."""
        return self._llm

    async def start(self) -> None:
        """Tie the engine's process to this one, open the weight transfer and label the initial weights.

        Raises `ValueError` if expert choices should be recorded and can't be.
        """
        await self._process.answer(self._start())
        envs.enable_envs_cache()  # else each token's statistics read os.environ

    async def _start(self) -> None:
        self._process.loading = await self._llm.collective_rpc("end_with_parent")
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest())
        await self._llm.update_weight_version(str(self._initial.step))
        await self._llm.get_supported_tasks()  # vLLM caches it: later requests are registered without a wait
        second = self._llm.vllm_config.use_v2_model_runner
        if ON_CPU and not second:
            await self._llm.collective_rpc("sample_seeded")
        if self._config.speculation != "off" and not second:
            await self._llm.collective_rpc("sample_drafts", args=(self._tags is not None,))
        if self._llm.vllm_config.scheduler_config.scheduler_cls is PromptScheduler:
            await self._llm.collective_rpc("share_prompts")
        if self._record_experts and second:
            self._expert_layers = (await self._llm.collective_rpc("expert_layers"))[0]
        elif self._record_experts:
            refusals = await self._llm.collective_rpc("record_experts")
            if any(refusals):
                raise ValueError(f"vLLM can't record this model's experts for learner.router_replay: {max(refusals)}")

    async def generate(self, request: TurnRequest) -> Completion:
        if request.limit is not None and self._tags is None:
            raise ValueError("thinking can't be limited: the engine was started without thinking tags")
        name = request.name or f"r{next(self._numbers)}"
        prompt = (*request.prompt_ids, *request.prefix_ids)
        if request.limit is not None:
            self._limited[name] = request
        try:
            with self._stats.at_work(), self._clocks.of(name, request.clock):
                sampled = await self._output(prompt, request_params(request, ends=self._ends), name)
            ids = tuple(sampled.token_ids)
            injected_T = self._injected_marks(name, ids)
        finally:
            self._limited.pop(name, None)
        assert isinstance(sampled.logprobs, FlatLogprobs)
        assert sampled.weight_versions is not None
        whole = completion(
            ids,
            sampled.logprobs,
            [(span.version, span.start) for span in sampled.weight_versions],
            injected_T=injected_T,
            finished=sampled.finish_reason == "stop",
            experts=await self._experts(name, sampled, ids=len(prompt) + len(ids)) if self._record_experts else None,
        )
        return cut_at_stop(whole, request.prefix_ids, request.sampling.stop, self._text)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._llm.get_tokenizer().decode(list(ids), skip_special_tokens=False))

    def _injected_marks(self, name: str, ids: tuple[int, ...]) -> tuple[bool, ...]:
        request = self._limited.get(name)
        if request is None:
            return (False,) * len(ids)
        assert self._tags is not None
        assert request.limit is not None
        opened = self._tags.is_opened_by(request.prompt_ids)
        return self._tags.injected_marks(ids, request.limit, prefix_ids=request.prefix_ids, opened=opened)

    def partial_completion(self, request: str) -> Completion | None:
        """See `Engine.partial_completion`: vLLM's front end holds the tokens of running requests."""
        processor = self._llm.output_processor
        names = processor.external_req_ids.get(request)
        state = processor.request_states.get(names[0]) if names else None
        if state is None or self._record_experts:
            return None
        assert state.detokenizer is not None
        assert state.logprobs_processor is not None
        assert isinstance(state.logprobs_processor.logprobs, FlatLogprobs)
        ids = tuple(state.detokenizer.output_token_ids)
        return completion(
            ids,
            state.logprobs_processor.logprobs,
            state.weight_version_starts,
            injected_T=self._injected_marks(request, ids),
            finished=False,
        )

    async def _output(self, prompt_ids: tuple[int, ...], params: SamplingParams, request: str) -> CompletionOutput:
        """Return the sampled tokens. Raise `RuntimeError` if vLLM ended the request, `WorkerDied` if it died.

        A request without a token at a weight load starts again without the old weights' cache.
        """
        while True:
            final = None
            self._salted[request] = self._served
            try:
                async for output in self._llm.generate(self._prompt(prompt_ids), params, request):
                    final = output
            except EngineDeadError as error:
                raise WorkerDied("the engine's process died") from error
            finally:
                salted = self._salted.pop(request)
            if final is None:
                raise RuntimeError(f"vLLM ended request {request} without an output")
            sampled = final.outputs[0]
            if sampled.finish_reason in ("stop", "length"):
                return sampled
            if sampled.finish_reason != "abort" or salted == self._served:
                raise RuntimeError(f"vLLM ended request {request} by itself: {sampled.finish_reason}")

    def _prompt(self, ids: Sequence[int]) -> TokensInput:
        """Return a prompt that vLLM registers at once, so that no weight load comes in between."""
        return tokens_input(list(ids), cache_salt=str(self._served))

    def _sampled_tokens(self, request: str) -> int:
        processor = self._llm.output_processor
        states = [processor.request_states[name] for name in processor.external_req_ids.get(request, ())]
        return sum(state.detokenizer.num_output_tokens() for state in states if state.detokenizer is not None)

    async def _experts(self, request: str, sampled: CompletionOutput, *, ids: int) -> Choices:
        if sampled.routed_experts is not None:
            return pad_choices(sampled.routed_experts[:, self._expert_layers].astype(np.int16), ids=ids)
        taking = self._llm.collective_rpc("take_experts", args=(request,))
        (shape, data), *_ = await self._process.answer(taking)  # all processes of an engine choose alike
        return pad_choices(np.frombuffer(data, dtype=np.int16).reshape(shape), ids=ids)

    def _passed(self, tokens: int) -> None:
        self._on_pass(tokens)
        self._clocks.look()

    def _set_paused(self, *, paused: bool) -> None:
        self._stats.set_paused(paused=paused)
        self._clocks.set_paused(paused=paused)

    def take_stats(self) -> EngineStats:
        return self._stats.take()

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """See `Engine.set_onloaded`. Running requests freeze at sleep, and are recomputed after it."""
        assert weights or not cache, "a cache is of no use without weights"
        self._set_paused(paused=True)
        if (weights, cache) != (self._has_weights, self._has_cache):
            what = f"{'wake' if weights else 'fall asleep'} within {limit_s:.0f} s"
            try:
                async with asyncio.timeout(limit_s):
                    await self._process.answer(self._wake(cache=cache) if weights else self._fall_asleep())
            except WorkerDied:
                raise
            except TimeoutError:
                raise WorkerDied(f"the engine did not {what}") from None
            except Exception as error:
                raise WorkerDied(f"the engine could not {what}: {describe_error(error)}") from error
            self._has_weights, self._has_cache = weights, cache
        self._set_paused(paused=not cache)

    async def _fall_asleep(self) -> None:
        await self._llm.sleep(level=LEVEL, mode="keep")
        await self._llm.collective_rpc("release_cache")

    async def _wake(self, *, cache: bool) -> None:
        assert not self._has_cache, "it falls asleep before it wakes with its weights alone"
        parts = ([] if self._has_weights else [WEIGHTS]) + ([CACHE] if cache else [])
        fully = await self._llm.wake_up(parts)
        if fully is not cache:
            raise RuntimeError(f"vLLM has {'all' if fully else 'not all'} of its memory after it woke with {parts}")

    async def memory_usage(self) -> MemoryUsage:
        """See `Engine.memory_usage`: sums over the engine's processes."""
        asking: Coroutine[Any, Any, list[tuple[int, int, int, int]]] = self._llm.collective_rpc("memory")
        weights, cache, main, device = (sum(parts) for parts in zip(*await self._process.answer(asking), strict=True))
        return MemoryUsage(
            weights=weights if self._has_weights else 0,
            cache=cache if self._has_cache else 0,
            main=main,
            device=device or None,
        )

    async def wait_for_answer(self) -> None:
        await self.version()

    async def wait_for_progress(self) -> None:
        await self._process.wait_for_progress(self._llm.get_weight_version())

    async def wait_until_dead(self) -> None:
        await self._process.wait_until_dead()

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        """See `Engine.load_weights`. Requests in flight freeze, keep their cache and continue afterwards.

        Raises `ValueError` for damaged data, `WholeWeightsNeeded` for adapters without their base, and `WorkerDied` if the
        load fails midway. After a `ValueError` the old weights stay; with buckets the engine stays paused until they are
        sent again.
        """
        limit = self._config.push_deadline_s(manifest.bytes_with_base)
        if isinstance(offer, BucketGroup):
            incoming = IncomingWeights(manifest=manifest, bucket_group=offer, number=number)
            return await self._update(
                {"incoming": asdict(incoming)}, manifest.weight_version, limit=limit, repeats=True
            )
        arrived = await asyncio.to_thread(self._receiver.receive, manifest, offer)  # before the pause
        return await self._update({"segment": asdict(arrived)}, manifest.weight_version, limit=limit)

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """See `Engine.load_checkpoint`. Requests in flight continue as in `load_weights`.

        Raises `FileNotFoundError` or `ValueError` if the model is incomplete: the old weights stay. Raises `WorkerDied` if
        the load fails midway.
        """
        await asyncio.to_thread(require_complete, directory)  # before generation pauses
        return await self._update({"checkpoint": str(directory)}, version)

    async def _update(
        self, source: dict[str, Any], version: WeightVersion, *, limit: float | None = None, repeats: bool = False
    ) -> WeightVersion:
        """Let vLLM's worker load a `WeightSource` between two tokens. Return the version that it confirms.

        Raises `WorkerDied` if that fails, or takes more than `limit` seconds: an engine with half of the weights can't
        serve. If the update `repeats`, a `ValueError` passes, and the engine accepts a new attempt with all weights.
        """
        try:
            async with asyncio.timeout(limit):
                await self._process.answer(self._load(source, version))
                confirmed = await self.version()
        except WorkerDied:
            raise
        except Exception as error:
            again = repeats and isinstance(error, ValueError)  # it is raised in `_load`, not in vLLM's processes
            what = f"weight version {version.step} was not loaded whole: {describe_error(error)}"
            raise (ValueError(f"{what}; push again") if again else WorkerDied(what)) from error
        if confirmed != version:
            raise WorkerDied(f"loaded weight version {version.step}, the engine confirms {confirmed.step}")
        return confirmed

    async def _load(self, source: dict[str, Any], version: WeightVersion) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=False)
        self._served += 1  # not earlier: until the pause the old weights fill the cache
        self._set_paused(paused=True)
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(source))
        if "incoming" in source and (failure := max(await self._llm.collective_rpc("weight_failure"))):
            await self._llm.finish_weight_update()  # without a version, so that the next one can begin
            raise ValueError(failure)
        await self._llm.finish_weight_update(str(version.step))
        old = [name for name, salted in self._salted.items() if salted != self._served]
        await self._llm.abort([name for name in old if not self._sampled_tokens(name)])
        if self._has_cache:  # else it continues when it wakes
            await self._llm.resume_generation()
            self._set_paused(paused=False)

    async def version(self) -> WeightVersion:
        return WeightVersion(step=int(await self._process.answer(self._llm.get_weight_version())))

    async def close(self) -> None:
        self._llm.shutdown(timeout=self._grace_s)
        self._receiver.close()
        self._scratch.close()
