"""One rank of the learner: a plain class, made a Ray actor by the orchestrator, one per process.

All ranks receive the same calls in the same order. Each computes its share of a batch.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import temper.rollout.deferred_imports  # noqa: F401

import psutil
import torch
from transformers import logging as transformers_logging

from temper.envs.core.process import Heartbeat, MemoryUsage, ProgressCounter
from temper.learner.batches.builder import BuildBatches, build_shares
from temper.learner.batches.micro_batches import BatchShare
from temper.learner.batches.packing import ON_CPU, PassCosts
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.engine.deepspeed_engine import DeepSpeedEngine, join_ranks
from temper.learner.engine.device_memory import device_bytes
from temper.learner.engine.frozen_model import FOLDER, FrozenModel, Reference, UnadaptedModel
from temper.learner.engine.optimizer import freeze, learning_rate
from temper.learner.engine.placement import Placement, read_placed
from temper.learner.engine.saved_state import ADAPTERS_FILE
from temper.learner.gc_freeze import freeze_gc
from temper.learner.losses.config import LossConfig
from temper.learner.models.adapters import add_adapters, load_adapters
from temper.learner.models.experts import ExpertReplay, prepare_routers
from temper.learner.models.loading import read_tokenizer, recompute
from temper.learner.models.pass_costs import MOST_TOKENS, measure_pass_costs
from temper.learner.models.shape import longest_sequence
from temper.learner.saving import (
    PendingCheckpoint,
    checkpoint_bytes,
    checkpoint_pieces,
    has_room,
    random_file,
    read_random_states,
)
from temper.learner.token_records import TokenRecord, build_records
from temper.learner.training_state import STATE_FOLDER, CheckpointFacts, LoadedModel
from temper.learner.update import (
    NO_FIXED_VALUES,
    FixedValues,
    average_updates,
    compute_fixed_values,
    compute_loss,
    normalise_sums,
    sum_over_ranks,
)
from temper.learner.weight_sender import WeightSender
from temper.rollout.trajectory import Group
from temper.rollout.weights.manifest import NoLongerHeld, WeightManifest
from temper.rollout.weights.transports import Receivers, require_usable


class TrainerWorker:
    """Trains one model at a time. Call `load` first, and again for the next stage."""

    def __init__(self, rank: int, world_size: int, master_addr: str, master_port: int, config: LearnerConfig) -> None:
        if world_size != config.ranks:
            raise ValueError(f"world_size={world_size} is not learner.ranks={config.ranks}")
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK="0",  # Ray shows each actor its own device only
            WORLD_SIZE=str(world_size),
            MASTER_ADDR=master_addr,
            MASTER_PORT=str(master_port),
        )
        freeze_gc()  # DeepSpeed runs three collections when an engine begins or ends
        torch.set_num_threads(config.threads)
        transformers_logging.set_verbosity_error()  # on a CPU it warns about missing GPU kernels
        transformers_logging.disable_progress_bar()
        join_ranks(timeout_seconds=config.collective_timeout_s)
        self.rank = rank
        self.progress_counter = ProgressCounter()
        self.config = config
        self.steps = 0  # updates done, as counted by the schedule
        self.needed_bytes = 0
        self._pending = PendingCheckpoint()
        self._records: list[TokenRecord] = []
        self._built: list[BatchShare] = []
        self.engine: DeepSpeedEngine | None = None
        self.replay: ExpertReplay | None = None
        self.reference: Reference | None = None
        self.pushes = WeightSender(config, rank=rank, progress_counter=self.progress_counter)

    def load(
        self, model_dir: str, *, optim: OptimConfig, total_steps: int, teacher_dir: str | None = None
    ) -> LoadedModel:
        """Load a model directory in Hugging Face format (safetensors), to train it from step 0.

        The reference is the initial model or a teacher. The previous model is freed. Raises `ValueError` if the directory
        holds no such model, if the model lacks configured expert layers, or if the transport needs a GPU and there is none.
        """
        require_usable(self.config.transport)
        self.optim = optim
        self.total_steps = total_steps
        self.steps = 0
        self.teacher_dir = None if teacher_dir is None else Path(teacher_dir)
        self.tokenizer_files = read_tokenizer(Path(model_dir))
        self._build_engine(Path(model_dir))
        return LoadedModel(costs=self._measure_costs(), padded_because=self._engine().scorer.padded_because)

    def _measure_costs(self) -> PassCosts:
        """Measure the costs of passes on a GPU that may share prompts, if its passes hold the measured shapes. Collective."""
        engine, budget = self._engine(), self.config.micro_batch_tokens
        if engine.device.type != "cuda" or not self.config.shared_prompts:
            return ON_CPU
        if min(longest_sequence(self.start_dir) or budget, budget) < MOST_TOKENS:
            return ON_CPU
        engine.train(noise=False)
        return measure_pass_costs(engine.scorer, device=engine.device, budget=budget)

    def _build_engine(self, model_dir: Path, adapters: Path | None = None) -> None:
        """Build the engine of a model. Adapters, if trained, are new or read from a checkpoint's file."""
        self.close()
        placement = Placement(self.config)
        model = read_placed(model_dir, placement)
        self.start_dir = model_dir
        prepare_routers(model, self.config)
        freeze(model, self.config.frozen)
        lora = self.config.lora
        if lora.rank:
            add_adapters(model, rank=lora.rank, alpha=lora.alpha)
        if adapters is not None:
            load_adapters(model, adapters)
        recompute(model, self.config.recompute)
        tokenizer_bytes = sum(map(len, self.tokenizer_files.values()))
        ema = self.optim.ema_decay > 0
        self.needed_bytes = checkpoint_bytes(model, bf16=self.config.bf16, ema=ema) + tokenizer_bytes
        self.engine = DeepSpeedEngine(model, optim=self.optim, learner=self.config)
        self.engine.load_float32(model_dir, placement)
        self.replay = ExpertReplay(
            model, replay=self.config.router_replay, device=self.engine.device, group=self.engine.sequence_group
        )

    def heartbeat(self) -> Heartbeat:
        """Return the rank's heartbeat. May be called from another thread while it computes."""
        return self.progress_counter.heartbeat()

    def use_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def build(self, groups: Sequence[Group], build_batches: BuildBatches) -> set[int]:
        """Read the turns of groups and build this rank's shares of their batches, for `train`.

        Returns the tickets of groups whose turns are lost. Then nothing is built.
        """
        with self.progress_counter.busy("build"):
            self._built, lost = build_shares(groups, build_batches, number=self.rank // self.config.sequence_parallel)
        return lost

    def train(
        self, shares: Sequence[BatchShare] | None = None, *, loss: LossConfig, epochs: int = 1
    ) -> dict[str, float]:
        """Update from this rank's share of each mini-batch, by default those from `build`. For metrics see `average_updates`.

        The shares cover `epochs` epochs; the first is recorded. With several updates the old policy's log-probabilities are
        computed before the first one.
        """
        with self.progress_counter.busy("train"):
            start = time.monotonic()
            if shares is None:
                shares, self._built = self._built, []
            self._records = []
            several = len(shares) > 1
            fixed: list[list[FixedValues]] | list[None] = [None] * len(shares)
            if loss.normalises_divergence or (several and loss.is_sampled):
                distinct = {id(share.micro_batches): share.micro_batches for share in shares}
                reference = self._reference() if loss.needs_reference else None
                model = self._engine(), self._replay()
                advance = self.progress_counter.advance
                found = compute_fixed_values(
                    *model, [*distinct.values()], loss=loss, reference=reference, on_progress=advance
                )
                known = dict(zip(distinct, found, strict=True))  # a single batch repeats in each epoch
                fixed = [known[id(share.micro_batches)] for share in shares]
            first_of_group = self.rank % self.config.sequence_parallel == 0  # the others have the same records
            updates = [
                self.train_step(
                    share, loss=loss, fixed=of_share, record=first_of_group and number < len(shares) // epochs
                )
                for number, (share, of_share) in enumerate(zip(shares, fixed, strict=True))
            ]
            seconds = time.monotonic() - start
            tokens = sum(share.tokens for share in shares)
            return average_updates(updates) | {"step_seconds": seconds, "tokens_per_s": tokens / seconds}

    def train_step(
        self, share: BatchShare, *, loss: LossConfig, fixed: Sequence[FixedValues] | None = None, record: bool = False
    ) -> dict[str, float]:
        """Update once from this rank's share of a batch; returns metrics of the whole batch, equal on every rank.

        `skipped` is 1 if loss or gradient was not finite, or no token is trained. Then nothing changes. Raises `ValueError`
        if the initial model and its reference give different log-probabilities.
        """
        if not share.trained_tokens:
            return {"skipped": 1.0}
        engine, replay = self._engine(), self._replay()
        self.pushes.forget()
        engine.train(noise=loss.objective == "nll")
        reference = self._reference() if loss.needs_reference else None
        starts = self.steps == 0 and self.teacher_dir is None and reference is not None
        totals: dict[str, torch.Tensor] = {}
        own = share.micro_batches
        if record and self.rank == 0:
            self._records += [TokenRecord.without_advantage(place) for place in share.uncomputed.places]
        for micro_batch, known in zip(own, fixed or [NO_FIXED_VALUES] * len(own), strict=True):
            model = engine, replay
            result = compute_loss(*model, micro_batch, config=loss, reference=reference, fixed=known, starts=starts)
            engine.backward(result.total / share.denominator)
            if record and result.terms is not None:
                self._records += build_records(micro_batch, result.terms)
            for name, value in result.sums.items():  # on the device, which the host would have to wait for
                totals[name] = totals.get(name, 0.0) + value.double()
            self.progress_counter.advance()
        rate = learning_rate(self.steps, optim=self.optim, total_steps=self.total_steps)
        applied, norm = engine.step(learning_rate=rate)
        self.steps += applied
        same = self.config.sequence_parallel  # each rank of a group has the same sums
        sums = {name: value / same for name, value in sum_over_ranks(totals).items()}
        metrics = normalise_sums(sums, denominator=share.denominator, uncomputed=share.uncomputed) | replay.metrics()
        return metrics | {"grad_norm": norm, "learning_rate": rate, "skipped": float(not applied)}

    def token_records(self) -> tuple[int, list[TokenRecord]]:
        """Return the number of this rank's answers in the last `train`, and their per-token results.

        There are none unless answers were sampled.
        """
        return len(self._records), self._records

    def set_onloaded(self, *, weights: bool, states: bool) -> None:
        """Move the weights, and all other training state, to the device, or to main memory."""
        with self.progress_counter.busy("set_onloaded"):
            if self.engine is not None:
                self.engine.memory.set_onloaded(weights=weights, states=states)
            if self.reference is not None:
                self.reference.set_onloaded(weights=states)

    def memory_usage(self) -> MemoryUsage:
        """Return the memory usage of the rank, on its device and in total."""
        weights, states = (0, 0) if self.engine is None else self.engine.memory.nbytes()
        states += 0 if self.reference is None else self.reference.nbytes()
        return MemoryUsage(
            weights=weights, states=states, main=psutil.Process().memory_info().rss, device=device_bytes()
        )

    def checkpoint_bytes(self) -> int:
        return self.needed_bytes

    def save(self, directory: str, *, beside: bool = False, spare: int = 0, together: int = 1) -> bool:
        """Write this rank's share of a checkpoint: model and tokenizer in Hugging Face format, and the training state.

        With `beside` it is copied to main memory and `write` writes it during training. It is written at once if the machine
        has no room for the copies of its ranks, `together`, plus `spare` bytes. Returns whether pieces remain to be written.
        """
        target = Path(directory)
        start = os.path.relpath(self.start_dir, target.parent)
        scale = self.config.lora.scale
        facts = CheckpointFacts(steps=self.steps, bf16=self.config.bf16, start=start, adapter_scale=scale)
        pieces = checkpoint_pieces(self._engine(), target, rank=self.rank, facts=facts, tokenizer=self.tokenizer_files)
        copied = self.needed_bytes * together // self.config.ranks if self.config.zero_stage else self.needed_bytes
        return self._pending.add(pieces, hold=beside and has_room(copied + spare))

    def write(self) -> None:
        """Write the pieces that `save` copied. May be called from another thread during training."""
        self._pending.write()

    def restore(self, directory: str) -> int:
        """Resume from a checkpoint of this model; returns the number of updates done. Call `load` first.

        The number of ranks and the ZeRO stage may differ from the checkpoint's. Raises `ValueError` if its optimiser state
        belongs to other parameters or another type.
        """
        state = Path(directory) / STATE_FOLDER
        facts = CheckpointFacts.read(Path(directory))
        if facts.bf16 != self.config.bf16:
            raise ValueError(f"{directory} was written with learner.bf16={str(facts.bf16).lower()}; set the same value")
        start = (Path(directory).parent / facts.start).resolve()
        if self.config.lora.rank:  # the checkpoint's model has the adapters merged
            self._build_engine(start, state / ADAPTERS_FILE)
        self.start_dir = start
        self._engine().load_state(state)
        read_random_states(state / random_file(self.rank))
        self.steps = facts.steps
        return self.steps

    def publish(self, version: int) -> WeightManifest | None:
        """Prepare the weights for a push. Rank 0 returns the manifest, the others None."""
        return self.pushes.publish(version, self._loaded())

    def merge_reason(self) -> str:
        return self.pushes.merge_reason(self._loaded())

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> object:
        return self.pushes.offer(version, with_base=with_base, receivers=receivers)

    def send(self, version: int) -> None:
        """Run this rank's part while the engines receive the last push. See `WeightSender.send`.

        Raises `NoLongerHeld` also if no model is loaded.
        """
        if self.engine is None:
            raise NoLongerHeld(f"version {version} is not available: no model is loaded; call load first")
        self.pushes.send(version, self.engine)

    def close(self) -> None:
        """Free the model and the weights of a push. The rank can `load` again."""
        self.pushes.close()
        self.replay = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        if self.reference is not None:
            self.reference.close()
            self.reference = None

    def load_reference(self) -> None:
        """Load the stage's initial weights, or the teacher's, as reference. Call it after `restore`, if at all."""
        if self.reference is not None:
            return
        if self.config.lora.rank and self.teacher_dir is None:
            self.reference = UnadaptedModel(self._engine(), replay=self._replay())
            return
        placement = Placement(self.config, folder=FOLDER)
        model = read_placed(self.teacher_dir or self.start_dir, placement)
        replay = self.config.router_replay and self.teacher_dir is None  # engines do not run a teacher's routers
        self.reference = FrozenModel(model, learner=self.config, device=self._engine().device, replay=replay)

    def _reference(self) -> Reference:
        self.load_reference()
        assert self.reference is not None
        return self.reference

    def _engine(self) -> DeepSpeedEngine:
        engine = self._loaded()
        assert engine.memory.is_onloaded, "the model is offloaded: reload it before it computes"
        return engine

    def _loaded(self) -> DeepSpeedEngine:
        if self.engine is None:
            raise ValueError("no model is loaded; call load first")
        return self.engine

    def _replay(self) -> ExpertReplay:
        assert self.replay is not None
        return self.replay
