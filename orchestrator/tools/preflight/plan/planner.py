"""The parts of a plan, worked out for one configuration on one hardware."""

from functools import cached_property

from temper.learner.config import LearnerConfig, OptimConfig
from temper.orchestrator.cluster.bundles import wanted_by
from temper.orchestrator.cluster.hardware import GIB
from temper.orchestrator.cluster.placement import Node
from temper.orchestrator.cluster.transport_choice import Ground
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.stages.distill import DistillConfig
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Site
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory, engine_memory
from temper.orchestrator.tools.preflight.plan.memory.host_memory import (
    HostMemory,
    PushPlan,
    host_memory,
    object_store_bytes,
    push_plan,
)
from temper.orchestrator.tools.preflight.plan.memory.rank_memory import RankMemory, rank_memory
from temper.orchestrator.tools.preflight.plan.model import PlannedModel, counted, source_config
from temper.orchestrator.tools.preflight.plan.step_time import Fleet, Rates, StepTime, card_rates, step_time
from temper.orchestrator.tools.preflight.plan.work import Work, answer_tokens, prompt_tokens, work_of


class Planner:
    """What a configuration takes on a hardware. The model is counted as its learner would have it."""

    def __init__(self, config: Config, model: PlannedModel, site: Site, assumptions: Assumptions) -> None:
        self.config, self.model, self.site, self.assumptions = config, model, site, assumptions
        self.trains = any(one.stage.trains for one in config.instances)
        self.plays = any(config.plays(one) for one in config.instances)
        self.wanted = wanted_by(config, trains=self.trains, plays=self.plays)
        self.gpu = site.hardware.gpus > 0
        self.nodes = [
            Node(name=str(at), address=str(at), gpus=one.gpus, free=one.gpus)
            for at, one in enumerate(site.hardware.machines)
        ]
        self.halves = self.gpu and self.wanted.on(self.nodes).shared and not self.wanted.shared
        self.gpu_bytes = site.hardware.gpu_gib * GIB
        limits = config.rollout.limits
        self.longest = limits.total_tokens
        mean = prompt_tokens(limits, assumptions) + answer_tokens(limits, assumptions, turns=self.turns)
        self.mean_length = int(min(self.longest, mean))

    @property
    def gpus(self) -> int:
        """GPUs that its processes have; 0 on CPUs."""
        if not self.gpu:
            return 0
        return 1 if self.halves else self.wanted.gpus

    @cached_property
    def turns(self) -> int | None:
        """Most turns of an episode; None where neither the run nor an environment says."""
        settings = [env.ref.settings for env in self.config.environments.values()]
        own = [one.tool_turns if one.tools and one.max_turns else one.max_turns for one in settings]
        most = max((turns or 0 for turns in own), default=0) if all(own) else 0
        return min((turns for turns in (most, self.config.rollout.limits.turns) if turns), default=None)

    @cached_property
    def rank(self) -> RankMemory | None:
        """None for a run that trains nothing."""
        return self.rank_with(self.config.learner) if self.trains else None

    @cached_property
    def engine(self) -> EngineMemory | None:
        """None for a run that plays nothing."""
        if not self.plays:
            return None
        engine = self.config.rollout.engine
        return engine_memory(
            self.model,
            engine,
            gpu_bytes=self.gpu_bytes if self.gpu else 0.0,
            overhead=int(self.assumptions.engine_overhead_gib * GIB),
            cached_prefixes=self.gpu and engine.prefix_caching != "off" and not self.config.learner.router_replay,
        )

    def rank_with(self, learner: LearnerConfig) -> RankMemory:
        """Return the memory of a rank with other settings of the learner, which trains the same parameters."""
        # A reference of adapters is the model without them.
        frozen = [one for one in self._compared if not (learner.lora.rank and one is self.model)]
        return rank_memory(
            self.model,
            learner,
            self._optimizer(),
            pass_tokens=max(learner.micro_batch_tokens, self.longest if self.plays else 0),
            gpu=self.gpu,
            reference=max((one.parameters for one in frozen), default=0),
            push=self.push.copies_on_device * self.push.nbytes,
            overhead=int(self.assumptions.rank_overhead_gib * GIB) if self.gpu else 0,
        )

    @property
    def rank_room(self) -> float:
        """What a rank may fill: its GPU, or what an engine leaves of it that lies there all the time; 0 on a CPU."""
        if not self.gpu:
            return 0.0
        return self.gpu_bytes - (self.engine.allowed if self.halves and self.engine is not None else 0)

    @cached_property
    def push(self) -> PushPlan:
        """How weights travel."""
        machines, memory = self.site.hardware.machines, self.site.hardware.memory_gib * GIB
        ground = Ground(
            machines=len(machines),
            gpus=self.gpus,
            shared=self.wanted.shared or self.halves,
            memory=int(memory),
            object_store=object_store_bytes(memory, self.site.shm_bytes),
        )
        learner = self.config.learner
        computes = "bfloat16" if learner.bf16 else "float32"
        alone = learner.lora.rank > 0 and learner.wire_dtype == computes
        return push_plan(
            learner.transport,
            ground,
            nbytes=self.model.push_bytes[learner.wire_dtype],
            adapters=(2 if learner.bf16 else 4) * self.model.trained if alone else 0,
        )

    @cached_property
    def host(self) -> HostMemory:
        """Main memory of the machine of rank 0."""
        together = self.site.hardware.gpus_together if self.gpu else self.wanted.ranks
        ranks = min(self.wanted.ranks, together)
        processes = self.wanted.engines * self.wanted.processes
        beside = together if self.wanted.shared else max(0, together - ranks)
        left = beside if self.gpu else processes
        return host_memory(
            self.model,
            self.rank,
            self.engine,
            ranks=ranks,
            engines=min(processes, left),
            gpu=self.gpu,
            shared=self.wanted.shared,
            push_copies=self.push.copies if self.trains and self.plays else 0,
            push_bytes=self.push.nbytes,
        )

    @cached_property
    def work(self) -> Work | None:
        """A step of the first stage that runs the loop; None without one."""
        loop = self.loop
        if loop is None:
            return None
        settings = self.config.settings(loop)
        return work_of(loop.name, settings, self.config.rollout.limits, self.assumptions, turns=self.turns)

    def time(self) -> StepTime | None:
        """Return the seconds of a step; None without a loop, or without named GPUs on which an engine fits."""
        if self.work is None or self.rates is None:
            return None
        shift_s = self._shift_s()
        return step_time(self.rates, self.work, engines=self.wanted.engines, one_device=self.halves, shift_s=shift_s)

    @cached_property
    def rates(self) -> Rates | None:
        """Those of the named GPUs; None if they are not known."""
        if self.work is None or self.fleet is None:
            return None
        return card_rates(self.fleet, self.work, self.assumptions)

    @cached_property
    def fleet(self) -> Fleet | None:
        """What the rates of GPUs go by; None without a loop, named GPUs, or an engine on them that holds a sequence."""
        loop, engine = self.loop, self.engine
        if loop is None or engine is None or self.site.card is None or not engine.sequences(self.mean_length):
            return None
        settings: LoopConfig = self.config.settings(loop)
        loss, model, beside = settings.loss, self.model, self._compared_with(loop)
        old = settings.updates > 1 and loss.is_sampled and not loss.against_rollout
        splits = settings.epochs if settings.updates_per_step > 1 else 1  # each is scored
        return Fleet(
            card=self.site.card,
            model=model,
            learner=self.config.learner,
            engine=self.config.rollout.engine,
            memory=engine,
            engines=self.wanted.engines,
            push=self.push,
            together=self.site.hardware.gpus_together,
            spread=self.gpus > self.site.hardware.gpus_together,
            ranks_spread=self.wanted.ranks > self.site.hardware.gpus_together,
            scored=splits * ((model.parameters if old else 0) + (0 if beside is None else beside.parameters)),
            scores=splits * (int(old) + (0.0 if beside is None else beside.active / model.active)),
            updates=settings.updates,
        )

    def _shift_s(self) -> float:
        """Return what a step's three changes of shift take where devices are shared: each side goes and comes once."""
        if not self.wanted.shared or self.rank is None or self.engine is None:
            return 0.0
        return 2 * (self.rank.moved + self.engine.weights) / (self.assumptions.host_copy_gbs * 1e9)

    @property
    def loop(self) -> StageInstance | None:
        """The first stage that runs the loop."""
        return next((one for one in self.config.instances if isinstance(self.config.settings(one), LoopConfig)), None)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The other stages that train or play, of which no seconds are worked out."""
        first, config = self.loop, self.config
        others = (one for one in config.instances if one is not first and (one.stage.trains or config.plays(one)))
        return tuple(one.name for one in others)

    def _optimizer(self) -> OptimConfig:
        """Return the optimiser with the larger state of those that stages use."""
        kinds = [self.config.settings(one).optim for one in self.config.instances if one.stage.trains]
        return min(kinds, key=lambda optim: optim.kind)  # adamw before muon

    @cached_property
    def _compared(self) -> list[PlannedModel]:
        """The frozen models that stages compare answers with."""
        trains = (one for one in self.config.instances if one.stage.trains)
        return [model for one in trains if (model := self._compared_with(one)) is not None]

    def _compared_with(self, one: StageInstance) -> PlannedModel | None:
        """Return the frozen model of a stage that trains: a teacher, or a reference, which is the model itself."""
        settings = self.config.settings(one)
        if isinstance(settings, DistillConfig):
            source = settings.teacher
            return None if source is None else counted(source_config(source), LearnerConfig(), name=source.path)
        needed = one.stage.name == "dpo" or ("loss" in vars(settings) and settings.loss.needs_reference)
        return self.model if needed else None
