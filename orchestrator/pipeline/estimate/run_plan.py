"""The plan of a run: memory and seconds of its processes for one configuration on one hardware."""

from functools import cached_property

from temper.learner.config import LearnerConfig, OptimConfig
from temper.orchestrator.cluster.machines import GIB
from temper.orchestrator.cluster.placement import Node, build_request
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Site
from temper.orchestrator.pipeline.estimate.memory import (
    EngineMemory,
    HostMemory,
    PushPlan,
    RankMemory,
    copied_bytes,
    engine_memory,
    plan_push,
    rank_memory,
)
from temper.orchestrator.pipeline.estimate.model import PlannedModel, frozen_models, reference_parameters
from temper.orchestrator.pipeline.estimate.step_time import Fleet, StepTime, Work, mean_lengths, step_time, work_of
from temper.orchestrator.stages.stage import StageInstance


class Plan:
    """The resources of a configuration on a hardware. The model is counted as its learner would have it."""

    def __init__(self, config: Config, model: PlannedModel, site: Site, assumptions: Assumptions) -> None:
        self.config, self.model, self.site, self.assumptions = config, model, site, assumptions
        self.trains = any(one.stage.trains for one in config.instances)
        self.plays = any(config.plays(one) for one in config.instances)
        loops = (one for one in config.instances if isinstance(config.settings(one), LoopConfig))
        self.loop: StageInstance | None = next(loops, None)
        """The first stage that runs the loop."""
        self.wanted = build_request(config, trains=self.trains, plays=self.plays)
        self.gpu = site.hardware.gpus > 0
        self.nodes = [
            Node(name=str(at), address=str(at), gpus=one.gpus, free=one.gpus)
            for at, one in enumerate(site.hardware.machines)
        ]
        self.halves = self.gpu and self.wanted.resolve_for(self.nodes).colocated and not self.wanted.colocated
        self.gpu_bytes = site.hardware.gpu_gib * GIB
        self.longest = config.rollout.limits.total_tokens
        """Tokens of the longest sequence of an episode."""
        prompt, answer, _ = mean_lengths(config.rollout.limits, assumptions, turns=self.turns)
        self.mean_length = int(min(self.longest, prompt + answer))

    @property
    def hardware(self) -> str:
        """The hardware for people."""
        return self.site.hardware.describe() + (f" ({self.site.card.name})" if self.site.card else "")

    @property
    def gpus(self) -> int:
        """Number of GPUs. 0 on CPUs."""
        if not self.gpu:
            return 0
        return 1 if self.halves else self.wanted.gpus

    @cached_property
    def turns(self) -> int | None:
        """Maximum turns of an episode. None without a limit."""
        settings = [env.ref.settings for env in self.config.environments.values()]
        own = [one.tool_turns if one.tools and one.max_turns else one.max_turns for one in settings]
        most = max((turns or 0 for turns in own), default=0) if all(own) else 0
        return min((turns for turns in (most, self.config.rollout.limits.turns) if turns), default=None)

    @cached_property
    def rank(self) -> RankMemory | None:
        """None for a run without training."""
        return self.rank_with(self.config.learner) if self.trains else None

    def longest_shard(self, learner: LearnerConfig) -> int:
        """Return a rank's tokens of the longest sequence. 0 without sampling."""
        return -(-self.longest // learner.sequence_parallel) if self.plays else 0

    def rank_with(self, learner: LearnerConfig) -> RankMemory:
        """Return the memory of a rank with other settings of the learner, which trains the same parameters."""
        return rank_memory(
            self.model,
            learner,
            self._optims,
            pass_tokens=max(learner.micro_batch_tokens, self.longest_shard(learner)),
            gpu=self.gpu,
            reference=reference_parameters(self._frozen.values(), self.model, adapters=learner.lora.rank > 0),
            push=self.push.device_bytes if self.plays else 0,
            overhead=int(self.assumptions.rank_overhead_gib * GIB) if self.gpu else 0,
        )

    @property
    def _optims(self) -> list[OptimConfig]:
        return [self.config.settings(one).optim for one in self.config.instances if one.stage.trains]

    @property
    def rank_free_memory(self) -> int:
        """Bytes that a rank may use: its GPU, or its part of a GPU that it always shares with an engine. 0 on a CPU."""
        taken = self.engine.allowed if self.halves and self.engine is not None else 0
        return int(self.gpu_bytes - taken) if self.gpu else 0

    @cached_property
    def engine(self) -> EngineMemory | None:
        """None for a run without sampling."""
        if not self.plays:
            return None
        return engine_memory(
            self.model,
            self.config.rollout.engine,
            gpu_bytes=self.gpu_bytes if self.gpu else 0.0,
            overhead=int(self.assumptions.engine_overhead_gib * GIB),
            router_replay=self.config.learner.router_replay,
        )

    @property
    def sequences(self) -> tuple[int, int]:
        """Number of sequences that an engine holds, of maximum and of mean length. At most `max_sequences`."""
        most, engine = self.config.rollout.engine.max_sequences, self.engine
        if engine is None:
            return 0, 0
        return min(most, engine.sequences(self.longest)), min(most, engine.sequences(self.mean_length))

    @cached_property
    def push(self) -> PushPlan:
        """The transport of weights."""
        return plan_push(
            self.model,
            self.config.learner,
            self.site.hardware,
            gpus=self.gpus,
            colocated=self.wanted.colocated or self.halves,
            shm_bytes=self.site.shm_bytes,
        )

    @cached_property
    def host(self) -> HostMemory:
        """Main memory of the machine of rank 0."""
        rank, engine, colocated = self.rank, self.engine, self.wanted.colocated
        together = self.site.hardware.gpus_together if self.gpu else self.wanted.ranks
        ranks = min(self.wanted.ranks, together)
        engines = self.wanted.engines * self.wanted.processes
        if self.gpu:
            engines = min(engines, together if colocated else max(0, together - ranks))
        held = ranks * rank.offloaded if rank is not None else 0
        if not self.gpu:
            held += ranks * rank.states if rank is not None else 0
            held += engines * (engine.weights + engine.cache) if engine is not None else 0
        elif colocated and rank is not None and engine is not None:
            held += max(ranks * rank.moved, engines * engine.weights)
        return HostMemory(
            reading=ranks * rank.reading if rank is not None else 0,
            held=held,
            passes=0 if self.gpu or rank is None else ranks * (rank.peak - rank.states),
            push=self.push.host_bytes if self.trains and self.plays else 0,
            checkpoint=0 if rank is None else copied_bytes(self.model, self.config.learner, self._optims, ranks=ranks),
        )

    @property
    def host_free_memory(self) -> int:
        """Main memory of the smallest machine, in bytes."""
        return int(self.site.hardware.memory_gib * GIB)

    @cached_property
    def work(self) -> Work | None:
        """A step of the first loop stage. None without one."""
        if self.loop is None:
            return None
        loop = self.config.settings(self.loop)
        return work_of(self.loop.name, loop, self.config.rollout.limits, self.assumptions, turns=self.turns)

    @cached_property
    def time(self) -> StepTime | None:
        """The seconds of a step. None if `fleet` is None."""
        phase_s, rank, engine = 0.0, self.rank, self.engine
        if self.wanted.colocated and rank is not None and engine is not None:  # each side is loaded and offloaded once
            phase_s = 2 * (rank.moved + engine.weights) / (self.assumptions.host_copy_gbs * 1e9)
        return None if self.fleet is None else step_time(self.fleet, one_device=self.halves, phase_s=phase_s)

    @cached_property
    def fleet(self) -> Fleet | None:
        """The inputs of all seconds. None without a loop, without named GPUs, or if an engine holds no sequence."""
        loop, engine, work = self.loop, self.engine, self.work
        if loop is None or work is None or engine is None or self.site.card is None:
            return None
        if not engine.sequences(self.mean_length):
            return None
        settings: LoopConfig = self.config.settings(loop)
        loss, frozen = settings.loss, self._frozen.get(loop.name)
        old = settings.updates > 1 and loss.is_sampled and not loss.against_rollout
        splits = settings.epochs if settings.updates_per_step > 1 else 1  # each is scored
        return Fleet(
            card=self.site.card,
            model=self.model,
            learner=self.config.learner,
            engine=self.config.rollout.engine,
            memory=engine,
            engines=self.wanted.engines,
            gpus=self.gpus,
            together=self.site.hardware.gpus_together,
            push=self.push,
            scored=splits * ((self.model.parameters if old else 0) + (0 if frozen is None else frozen.parameters)),
            scores=splits * (int(old) + (0.0 if frozen is None else frozen.active / self.model.active)),
            updates=settings.updates,
            work=work,
            assumed=self.assumptions,
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """The stages that `time` does not cover: all training or sampling stages but the first loop stage."""
        if self.time is None:
            return ()
        others = (one for one in self.config.instances if one is not self.loop)
        return tuple(one.name for one in others if one.stage.trains or self.config.plays(one))

    @cached_property
    def _frozen(self) -> dict[str, PlannedModel | None]:
        """The frozen model of each stage that trains, if it has one."""
        trained = [one for one in self.config.instances if one.stage.trains]
        settings = [(one.stage.name, self.config.settings(one)) for one in trained]
        return dict(zip((one.name for one in trained), frozen_models(settings, self.model), strict=True))
