"""The plan of a run: what its processes take of memory, disk and time, and which limits it would meet."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from learner.config import LearnerConfig, OptimConfig
from orchestrator.cluster.bundles import wanted_by
from orchestrator.cluster.hardware import GIB, ask_hardware
from orchestrator.cluster.placement import Node, Wanted, lacking
from orchestrator.cluster.transport_choice import Ground
from orchestrator.pipeline.config import Config, given_text, make_config
from orchestrator.planning.assumptions import Assumptions
from orchestrator.planning.cards import Site, named_site
from orchestrator.planning.engine_memory import EngineMemory, engine_memory
from orchestrator.planning.host_memory import HostMemory, host_memory, object_store_bytes
from orchestrator.planning.limits import Limit, engine_limits, rank_limit, size
from orchestrator.planning.model import PlannedModel, planned_model
from orchestrator.planning.push import PushPlan, push_plan
from orchestrator.planning.rank_memory import RankMemory, rank_memory
from orchestrator.profiles.settled import choice, completed, settled, without_chosen
from orchestrator.settings.chosen import ChosenConfig
from orchestrator.settings.run_config import ModelConfig
from orchestrator.settings.text import resolved, typed
from rollout.weights.transports.catalog import AUTO

SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would take."""

    run: str
    hardware: str
    placement: str
    ranks: int
    engines: int
    gpus: int
    """GPUs that its processes have; 0 on CPUs."""
    model: PlannedModel
    rank: RankMemory | None
    """None for a run that trains nothing."""
    rank_room: int
    """Memory of the device of a rank, or of the part that it has of it; 0 on a CPU."""
    engine: EngineMemory | None
    """None for a run that plays nothing."""
    longest: int
    """Tokens of the longest sequence of an episode."""
    sequences: tuple[int, int]
    """How many of the longest sequences an engine holds, and how many of the mean length; at most `max_sequences`."""
    mean_length: int
    host: HostMemory
    host_room: int
    """Main memory of the smallest machine, in bytes."""
    push: PushPlan
    shm_bytes: int | None
    checkpoint_s: float
    """Seconds in which a checkpoint's files are written."""
    limits: tuple[Limit, ...]
    assumptions: Assumptions


def plan_of(path: Path, overrides: Sequence[str], *, gpus: str | None, assumptions: Assumptions) -> Plan:
    """Return the plan of a configuration file with what lies over it, on the GPUs that are named, or on the cluster there is.

    Raise `FileNotFoundError` or `ValueError` where the configuration, the hardware's name or the model is none.
    """
    site = site_of(gpus, assumptions)
    config, model = planned_config(path, overrides, site)
    return make_plan(config, model, site, assumptions)


def site_of(gpus: str | None, assumptions: Assumptions) -> Site:
    """Return the hardware that is named, else that of the cluster. Raise `ValueError` for a name that is none."""
    if gpus is not None:
        return named_site(gpus, host_gib_per_gpu=assumptions.host_gib_per_gpu, shm_gib=assumptions.shm_gib)
    room = shutil.disk_usage(SHM).total if SHM.is_dir() else None
    return Site(hardware=ask_hardware(), card=None, shm_bytes=room, named=False)


def planned_config(path: Path, overrides: Sequence[str], site: Site) -> tuple[Config, PlannedModel]:
    """Return the configuration as it would be on the hardware, and its model; raise as `plan_of`.

    Named hardware is chosen for anew, whatever was chosen for a run of that name before.
    """
    given = given_text(path, list(overrides))
    seen = resolved(given)
    wanted = typed(ModelConfig, seen.get("model") or {}, under="model.")
    shape = planned_model(wanted, LearnerConfig()).shape
    if site.named:
        own = typed(ChosenConfig, given.get("chosen") or {}, under="chosen.")
        plain = without_chosen(given, own)
        whole = completed(plain, choice(resolved(plain), "auto", site.hardware, shape))
    else:
        whole = settled(given, ask=lambda: site.hardware, shape=lambda seen: shape)
    config = make_config(whole)
    return config, planned_model(config.model, config.learner)


def make_plan(config: Config, model: PlannedModel, site: Site, assumptions: Assumptions) -> Plan:
    """Return the plan of a configuration that is whole."""
    return _Planner(config, model, site, assumptions).plan()


class _Planner:
    """What the parts of a plan share."""

    def __init__(self, config: Config, model: PlannedModel, site: Site, assumptions: Assumptions) -> None:
        self.config, self.model, self.site, self.assumptions = config, model, site, assumptions
        self.trains = any(one.stage.trains for one in config.instances)
        self.plays = any(config.plays(one) for one in config.instances)
        self.wanted = wanted_by(config, trains=self.trains, plays=self.plays)
        self.gpu = site.hardware.gpus > 0
        self.halves = self.gpu and self.wanted.on(_nodes(site)).shared and not self.wanted.shared
        self.gpu_bytes = site.hardware.gpu_gib * GIB
        limits = config.rollout.limits
        self.longest = limits.total_tokens
        answer = assumptions.answer_tokens or assumptions.answer_share * limits.turn_tokens
        self.mean_length = int(min(self.longest, assumptions.prompt_tokens + answer))

    def plan(self) -> Plan:
        learner, engine_config = self.config.learner, self.config.rollout.engine
        push = self._push()
        rank = self._rank(push, learner) if self.trains else None
        engine = self._engine(engine_config) if self.plays else None
        host = self._host(rank, engine, push)
        fitting = [min(engine_config.max_sequences, engine.sequences(n)) for n in self._lengths] if engine else [0, 0]
        return Plan(
            run=self.config.name,
            hardware=self.site.hardware.in_words() + (f" ({self.site.card.name})" if self.site.card else ""),
            placement="halves of one GPU" if self.halves else self.config.placement,
            ranks=self.wanted.ranks,
            engines=self.wanted.engines,
            gpus=(1 if self.halves else self.wanted.gpus) if self.gpu else 0,
            model=self.model,
            rank=rank,
            rank_room=int(self._rank_room(engine)),
            engine=engine,
            longest=self.longest,
            sequences=(fitting[0], fitting[1]),
            mean_length=self.mean_length,
            host=host,
            host_room=int(self.site.hardware.memory_gib * GIB),
            push=push,
            shm_bytes=self.site.shm_bytes,
            checkpoint_s=self.model.checkpoint_bytes / (self.assumptions.disk_gbs * 1e9) if self.trains else 0.0,
            limits=tuple(self._limits(rank, engine, host, push)),
            assumptions=self.assumptions,
        )

    @property
    def _lengths(self) -> tuple[int, int]:
        return self.longest, self.mean_length

    def _rank(self, push: PushPlan, learner: LearnerConfig) -> RankMemory:
        return rank_memory(
            self.model if learner.lora == self.config.learner.lora else planned_model(self.config.model, learner),
            learner,
            self._optimizer(),
            pass_tokens=max(learner.micro_batch_tokens, self.longest if self.plays else 0),
            gpu=self.gpu,
            reference=self._has_reference(),
            push=push.copies_on_device * push.nbytes,
            overhead=int(self.assumptions.rank_overhead_gib * GIB) if self.gpu else 0,
        )

    def _engine(self, engine: Any) -> EngineMemory:
        return engine_memory(
            self.model,
            engine,
            gpu_bytes=self.gpu_bytes if self.gpu else 0.0,
            overhead=int(self.assumptions.engine_overhead_gib * GIB),
            cached_prefixes=self.gpu and engine.prefix_caching != "off" and not self.config.learner.router_replay,
        )

    def _rank_room(self, engine: EngineMemory | None) -> float:
        """Return what a rank may fill: its GPU, what an engine that lies there all the time leaves of it, or a sleeping one."""
        if not self.gpu:
            return 0.0
        return self.gpu_bytes - (engine.allowed if self.halves and engine is not None else 0)

    def _push(self) -> PushPlan:
        machines, memory = self.site.hardware.machines, self.site.hardware.memory_gib * GIB
        ground = Ground(
            machines=len(machines),
            gpus=(1 if self.halves else self.wanted.gpus) if self.gpu else 0,
            shared=self.wanted.shared or self.halves,
            memory=int(memory),
            object_store=object_store_bytes(memory, self.site.shm_bytes),
        )
        learner = self.config.learner
        nbytes = self.model.push_bytes[learner.wire_dtype]
        return push_plan(learner.transport, ground, sparse=learner.sparse_push, nbytes=nbytes)

    def _host(self, rank: RankMemory | None, engine: EngineMemory | None, push: PushPlan) -> HostMemory:
        together = self.site.hardware.gpus_together if self.gpu else self.wanted.ranks
        ranks = min(self.wanted.ranks, together)
        processes = self.wanted.engines * self.wanted.processes
        left = processes if self.wanted.shared or not self.gpu else max(0, together - ranks)
        return host_memory(
            self.model,
            rank,
            engine,
            ranks=ranks,
            engines=min(processes, left),
            gpu=self.gpu,
            shared=self.wanted.shared,
            push_copies=push.copies if self.trains and self.plays else 0,
            push_bytes=push.nbytes,
        )

    def _optimizer(self) -> OptimConfig:
        """Return the optimiser with the larger state of those that stages use."""
        kinds = [self.config.settings(one).optim for one in self.config.instances if one.stage.trains]
        return min(kinds, key=lambda optim: optim.kind)  # adamw before muon

    def _has_reference(self) -> bool:
        settings = [self.config.settings(one) for one in self.config.instances if one.stage.trains]
        losses = [one.loss for one in settings if "loss" in vars(one)]
        named = any(one.stage.name in ("dpo", "distill") for one in self.config.instances)
        return named or any(loss.needs_reference for loss in losses)

    def _limits(
        self, rank: RankMemory | None, engine: EngineMemory | None, host: HostMemory, push: PushPlan
    ) -> list[Limit]:
        found: list[Limit] = []
        total, most = self.site.hardware.gpus, self.site.hardware.gpus_together
        if self.gpu:
            found.append(self._processes())
        if rank is not None and self.gpu:
            again = partial(self._rank, push)
            found.append(
                rank_limit(
                    rank, self.config.learner, room=self._rank_room(engine), most_ranks=max(1, total), again=again
                )
            )
        if engine is not None:
            config = self.config.rollout.engine
            found += engine_limits(
                engine, config, length=self.longest, gpu=self.gpu, again=self._engine, most_processes=most
            )
        positions = self.model.shape.positions
        if positions is not None and self.plays:
            holds = self.longest <= positions
            remedy = "" if holds else f"rollout.limits.total_tokens={positions}"
            found.append(
                Limit(
                    what="positions of the model",
                    needed=f"{self.longest:,}",
                    has=f"{positions:,}",
                    holds=holds,
                    remedy=remedy,
                )
            )
        found.append(self._main_memory(host))
        if self.trains and self.plays:
            found.append(self._way_of_pushes(push))
        return found

    def _way_of_pushes(self, push: PushPlan) -> Limit:
        """Return whether pushes reach the engines and find room."""
        what, needed = f"a push by {push.transport}", size(push.copies * push.nbytes) if push.copies else "no copy"
        if not push.lacks:
            return Limit(what=what, needed=f"{needed} of the weights in main memory", has="", holds=True)
        why, _, remedy = push.lacks.partition("; ")
        by_choice = "" if self.config.learner.transport == AUTO else f", or learner.transport={AUTO}"
        return Limit(what=what, needed=why, has="", holds=False, remedy=f"{remedy}{by_choice}")

    def _processes(self) -> Limit:
        nodes = _nodes(self.site)
        wanted: Wanted = self.wanted.on(nodes)
        holds = wanted.fits(nodes)
        remedy = "" if holds else lacking(wanted, nodes).rpartition("; ")[2]
        return Limit(what="GPUs", needed=f"{wanted.gpus}", has=f"{self.site.hardware.gpus}", holds=holds, remedy=remedy)

    def _main_memory(self, host: HostMemory) -> Limit:
        room = self.site.hardware.memory_gib * GIB
        holds = host.peak <= room
        remedy = ""
        if not holds and host.reading >= host.peak:
            fitting = max(1, int(room // max(1, 4 * self.model.parameters)))
            remedy = f"learner.ranks={fitting} a machine, or machines with more: each rank reads the model in float32"
        elif not holds:
            remedy = "learner.wire_dtype=bfloat16, learner.offload=none, or machines with more"
        return Limit(
            what="main memory of a machine", needed=size(host.peak), has=size(room), holds=holds, remedy=remedy
        )


def _nodes(site: Site) -> list[Node]:
    return [
        Node(name=str(at), address=str(at), gpus=one.gpus, free=one.gpus)
        for at, one in enumerate(site.hardware.machines)
    ]
