"""A rollout worker: one engine, many concurrent episodes. A plain class, which the orchestrator makes a Ray actor.

`WorkerHandle` is the other end of its calls, in the driver.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from temper.envs.core.process import Heartbeat, MemoryUsage, Place, Process, ProgressCounter, WorkerDied
from temper.envs.sandbox.sandbox import report_sandbox, shared_sandbox
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.config import RolloutConfig
from temper.rollout.engines.protocol import Engine, EngineStats, MakeEngine, TurnRequest
from temper.rollout.episodes.agent_session import AgentServer, MakeAgentServer
from temper.rollout.episodes.episode import sample_seed
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.episodes.runner import EpisodeRunner, GroupInProgress
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.stored_turns import Payload, set_reference, store_turns
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest

NO_VARIABLES: Mapping[str, str] = {}

MOST_HUNG = 256
"""Most hanging environment calls in one worker, each with its thread, before the worker ends."""
DRAIN_LOOK_S = 0.5
"""Seconds between two checks for groups in flight."""


class RolloutWorker:
    """Runs groups of episodes, and loads new weights meanwhile."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        seed: int,
        make_engine: MakeEngine,
        make_agent_server: MakeAgentServer,
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        """`variables` are further environment variables of this process."""
        os.environ.update(variables)
        self._config = config
        self._seed = seed
        self._make_engine = make_engine
        self._make_agent_server = make_agent_server
        self._progress_counter = ProgressCounter()
        shared_sandbox().admit(config.programs)
        self._changes = 0
        self._asleep = False
        self._engine: Engine | None = None
        self._runner: EpisodeRunner | None = None
        self._agents: AgentServer | None = None
        self._in_progress: list[GroupInProgress] = []

    async def start(
        self, model_dir: str, version: int, record_experts: bool = False, sleeps: bool = False
    ) -> WeightVersion:
        """Start the engine on a model directory, whose weights count as `version`. Return the version that it confirms.

        With `record_experts` it records expert choices; raises `ValueError` if it can't. With `sleeps` it shares its
        device.
        """
        folder, thinking = Path(model_dir), self._config.thinking
        tokenizer = load_tokenizer(folder)
        renderer = Renderer(tokenizer, thinking)
        tags = ThinkingTags.find(tokenizer, closing=thinking.closing)
        engine = await self._make_engine(
            folder,
            self._config.engine,
            version=WeightVersion(step=version),
            ends=renderer.format.end_ids,
            tags=tags,
            record_experts=record_experts,
            sleeps=sleeps,
            on_pass=self._progress_counter.count_tokens,
        )
        self.attach(engine, renderer, tags, self._make_agent_server(engine, folder, thinking))
        return await engine.version()

    def attach(
        self, engine: Engine, renderer: Renderer, tags: ThinkingTags | None, agents: AgentServer | None = None
    ) -> None:
        config = self._config
        self._agents = agents
        sampler = TurnSampler(engine, tags, config.thinking, turn_tokens=config.limits.turn_tokens)
        self._engine = engine
        self._runner = EpisodeRunner(
            sampler=sampler,
            renderer=renderer,
            limits=config.limits,
            sequences=config.engine.max_sequences,
            on_step=self._progress_counter.advance,
            agents=agents,
        )

    async def run_group(
        self, ticket: Ticket, samples: int, attempt: int = 0, partial: PartialGroup | None = None
    ) -> Group:
        """Return `samples` answers to the ticket's task, sampled concurrently. Each attempt has its own seeds.

        Episodes in `partial` continue from there. Raises `WorkerDied` if too many environment calls hang, after the groups
        in flight: only the end of the process ends their threads.
        """
        if self._runner is None:
            raise RuntimeError("the rollout worker has no engine yet; call start() first")
        while (hung := self._runner.hung_calls) > MOST_HUNG:
            if not self._in_progress:
                raise WorkerDied(f"{hung} environment calls hang, which is more than {MOST_HUNG}")
            await asyncio.sleep(DRAIN_LOOK_S)
        seeds = [sample_seed(self._seed, ticket.number, sample, attempt) for sample in range(samples)]
        running = GroupInProgress(ticket, self._runner, attempt=attempt, seeds=seeds, partial=partial)
        self._in_progress.append(running)
        try:
            with self._progress_counter.busy(f"group {ticket.number}"):
                return await running.play()
        finally:
            self._in_progress.remove(running)

    async def run_stored_group(
        self, ticket: Ticket, samples: int, attempt: int = 0, partial: PartialGroup | None = None
    ) -> tuple[Group, Payload]:
        """Return a group as `run_group` does, without its turns, and these turns."""
        return store_turns(await self.run_group(ticket, samples, attempt, partial))

    async def compare_answers(self, group: Group) -> Group:
        """See `EpisodeRunner.compare_answers`."""
        assert self._runner is not None, "the rollout worker has no engine yet; call start() first"
        with self._progress_counter.busy(f"comparisons of group {group.ticket.number}"):
            return await self._runner.compare_answers(group)

    async def groups_in_flight(self) -> list[PartialGroup]:
        """Return the groups in flight, for other processes to continue."""
        return [running.to_partial() for running in self._in_progress]

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        """Sample one turn per prompt, without episodes. Return the number of tokens. For measurement."""
        turns = (
            self._started.generate(TurnRequest(prompt_ids=ids, max_tokens=max_tokens, seed=n))
            for n, ids in enumerate(prompts)
        )
        return sum(len(completion.token_ids) for completion in await asyncio.gather(*turns))

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        with self._changing():
            await self._started.set_onloaded(weights=weights, cache=cache, limit_s=limit_s)
        self._asleep = not cache

    async def memory_usage(self) -> MemoryUsage:
        return await self._started.memory_usage()

    async def load_weights(self, manifest: WeightManifest, offer: object, number: int) -> WeightVersion:
        """Load a push by its offer, as engine `number`. Return the version that the engine confirms."""
        with self._changing():
            return await self._started.load_weights(manifest, offer, number=number)

    async def load_checkpoint(self, directory: str, version: int) -> WeightVersion:
        """Load a model directory, whose weights count as `version`. Return the version that the engine confirms."""
        with self._changing():
            return await self._started.load_checkpoint(Path(directory), WeightVersion(step=version))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1

    async def engine_stats(self) -> EngineStats:
        stats = self._started.take_stats()
        return stats if self._runner is None else replace(stats, hung_calls=self._runner.hung_calls)

    async def heartbeat(self) -> Heartbeat:
        """Return the worker's heartbeat, once its engine has answered. If the engine hangs, so does this call.

        An engine that changes its weights or its sleep does not answer. It makes progress if its processes use CPU time. A
        sleeping engine counts as making progress, and so does an environment call within its time limit.
        """
        if self._engine is not None and self._changes:
            await self._engine.wait_for_progress()
            self._progress_counter.advance()
        elif self._engine is not None:
            await self._engine.wait_for_answer()
            if self._asleep or (self._runner is not None and self._runner.env_works):
                self._progress_counter.advance()
        return self._progress_counter.heartbeat()

    async def wait_until_dead(self) -> None:
        """Wait until the engine's process ends, then raise `WorkerDied`."""
        await self._started.wait_until_dead()

    async def isolation(self) -> str:
        """Return the isolation of this machine's sandbox. Raises `SandboxError` if it is too weak."""
        return await asyncio.to_thread(report_sandbox)

    async def close(self) -> None:
        try:
            if self._agents is not None:
                await self._agents.close()
        finally:
            if self._engine is not None:
                await self._engine.close()

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the rollout worker has no engine yet; call start() first")
        return self._engine


class WorkerHandle:
    """The pool's handle of a `RolloutWorker` in another process, whose methods it calls by name.

    Every call raises `WorkerDied` if the process or its engine ends.
    """

    def __init__(self, process: Process, *, number: int, record_experts: bool = False, sleeps: bool = False) -> None:
        """With `record_experts` the engine records expert choices. With `sleeps` it shares its device."""
        self._process = process
        self._record_experts, self._sleeps = record_experts, sleeps
        self.name = f"rollout worker {number}"

    @property
    def place(self) -> Place | None:
        return self._process.place

    async def wait_until_running(self) -> None:
        """Wait until the process runs, which needs a machine with room."""
        await self._process.wait_until_running()

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        return await self._process.call("start", str(model_dir), version.step, self._record_experts, self._sleeps)

    async def wait_until_dead(self) -> None:
        """Wait until the worker or its engine ends."""
        await self._process.call("wait_until_dead")

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        """Return the group with stored turns.

        Cancelling the call also cancels it in the process: otherwise it would run concurrently with the next one.
        """
        group, turns = await self._process.call_stored("run_stored_group", ticket, samples, attempt, partial)
        return set_reference(group, turns)

    async def compare_answers(self, group: Group) -> Group:
        """Return the group with the judge's comparisons in its rewards."""
        return await self._process.call("compare_answers", group, cancels=True)

    async def groups_in_flight(self) -> list[PartialGroup]:
        return await self._process.call("groups_in_flight")

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        return await self._process.call("sample_bare", prompts, max_tokens)

    async def isolation(self) -> str:
        return await self._process.call("isolation")

    async def engine_stats(self) -> EngineStats:
        return await self._process.call("engine_stats")

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        await self._process.call("set_onloaded", named={"weights": weights, "cache": cache, "limit_s": limit_s})

    async def memory_usage(self) -> MemoryUsage:
        return await self._process.call("memory_usage")

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        return await self._process.call("load_weights", manifest, offer, number)

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        return await self._process.call("load_checkpoint", str(directory), version.step)

    async def heartbeat(self) -> Heartbeat:
        return await self._process.call("heartbeat")

    def kill(self) -> None:
        """End the process at once. Waiting calls raise `WorkerDied`."""
        self._process.kill()

    async def close(self) -> None:
        """Stop the engine, then the process."""
        await self._process.close()
