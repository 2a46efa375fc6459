"""One rank of the learner: a plain class, made a Ray actor by the orchestrator, one per process.

All ranks are told the same things in the same order; each computes its share of a batch.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import logging as transformers_logging

from learner import mamba_scan
from learner.batch import MicroBatch, Sequence, TrainBatch
from learner.carriers import open_carrier
from learner.config import LearnerConfig, LossConfig, OptimConfig
from learner.deepspeed_engine import DeepSpeedEngine, join_ranks
from learner.loss import Loss, nll_loss, policy_loss, token_entropies, token_logprobs
from learner.objective import objective
from learner.optimizer import learning_rate
from learner.publish import WeightPublisher
from learner.routers import prepare_routers
from learner.routes import Routes
from learner.routing import Routing
from learner.shared_prompt import causal_logits
from rollout.manifest import WeightManifest

COLLECTIVE_TIMEOUT = 600.0
"""Seconds that a rank waits for the others in one operation before it fails."""
STATE_FOLDER = "learner"
"""Folder of a checkpoint for what Hugging Face's format has no place for."""
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)


class Rank:
    """Trains one model at a time. Call `load` first; call it again for the next stage."""

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
        torch.set_num_threads(config.threads)
        mamba_scan.install()
        transformers_logging.set_verbosity_error()  # on a CPU it warns that GPU kernels are absent
        transformers_logging.disable_progress_bar()
        join_ranks(timeout_seconds=COLLECTIVE_TIMEOUT)
        self.rank = rank
        self.config = config
        self.steps = 0  # updates done, which is what the schedule counts
        self.parameter_count = 0
        self.engine: DeepSpeedEngine | None = None
        self.routing: Routing | None = None
        self.reference: PreTrainedModel | None = None
        self.publisher: WeightPublisher | None = None

    def load(self, model_dir: str, *, optim: OptimConfig, total_steps: int) -> int:
        """Load a model directory in Hugging Face format (safetensors), to train it from step 0.

        Returns its parameter count. What was loaded before is freed. Raises `ValueError` for a directory that holds no
        such model, and for one without the expert layers that the configuration is about.
        """
        self.close()
        model = _read_model(Path(model_dir))
        prepare_routers(model, self.config)
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        self.reference_dir = Path(model_dir)
        self.tokenizer_files = _read_tokenizer(Path(model_dir))
        self.optim = optim
        self.total_steps = total_steps
        self.steps = 0
        self.engine = DeepSpeedEngine(model, optim=optim, learner=self.config)
        self.routing = Routing(model, replay=self.config.router_replay, device=self.engine.device)
        return self.parameter_count

    def use_threads(self, threads: int) -> None:
        """Compute with this many CPU threads from now on."""
        torch.set_num_threads(threads)

    def train_step(self, batch: TrainBatch, *, loss: LossConfig) -> dict[str, float]:
        """One update from this rank's share of the batch; returns metrics over the whole batch, the same on every rank.

        `skipped` is 1 where loss or gradient was not finite; nothing was changed then.
        """
        engine, routing = self._engine(), self._routing()
        start = time.monotonic()
        engine.train(True)
        reference = self._reference() if loss.kl_coefficient else None
        totals: dict[str, torch.Tensor] = {}
        for micro_batch in batch.micro_batches[self.rank]:
            routing.follow(micro_batch.routes)
            result = micro_batch_loss(engine, micro_batch, config=loss, reference=reference)
            engine.backward(result.total / batch.denominator)
            for name, value in result.sums.items():
                totals[name] = totals.get(name, torch.zeros((), dtype=torch.float64)) + value.double().cpu()
        rate = learning_rate(self.steps, optim=self.optim, total_steps=self.total_steps)
        applied, norm = engine.step(learning_rate=rate)
        self.steps += applied
        metrics = _means(_sum_over_ranks(totals), denominator=batch.denominator) | routing.metrics()
        seconds = time.monotonic() - start
        return metrics | {
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped": float(not applied),
            "step_seconds": seconds,
            "tokens_per_s": batch.tokens / seconds,
        }

    def logprobs(self, sequences: list[Sequence]) -> list[list[float]]:
        """The trainer's log-probability of each token of each sequence (0 for the first), one sequence at a time."""
        engine, routing = self._engine(), self._routing()
        engine.train(False)
        values = []
        with torch.no_grad():
            for sequence in sequences:
                ids_BT = torch.tensor([sequence.ids])
                routing.follow([Routes.uncounted(sequence.experts, length=len(sequence.ids))])
                values.append(token_logprobs(engine.logits(ids_BT).cpu(), ids_BT)[0].tolist())
        return values

    def save(self, directory: str) -> None:
        """Write a checkpoint: the model and its tokenizer in Hugging Face format, and the state that training needs."""
        engine = self._engine()
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        engine.save_model(target, write=self.rank == 0)
        state = target / STATE_FOLDER
        engine.save_state(state)
        save_file({"cpu": torch.get_rng_state()}, state / f"rng-{self.rank}.safetensors")
        if self.rank == 0:
            for name, content in self.tokenizer_files.items():
                (target / name).write_bytes(content)
            facts = {
                "steps": self.steps,
                "ranks": self.config.ranks,
                "zero_stage": self.config.zero_stage,
                "reference": os.path.relpath(self.reference_dir, target.parent),  # a run's folder may be moved
            }
            (state / "facts.json").write_text(json.dumps(facts), encoding="ascii")

    def checkpoint_bytes(self) -> int:
        """About what `save` writes, over all ranks, in bytes: the model twice, master weights, two moments."""
        return 20 * self.parameter_count + 2**24

    def restore(self, directory: str) -> int:
        """Continue from a checkpoint of this model; returns the number of updates done. Call `load` before.

        Raises `ValueError` where it was written by another number of ranks or another ZeRO stage.
        """
        state = Path(directory) / STATE_FOLDER
        facts = json.loads((state / "facts.json").read_text(encoding="ascii"))
        for name, value in (("ranks", self.config.ranks), ("zero_stage", self.config.zero_stage)):
            if facts[name] != value:
                raise ValueError(f"{directory} was written with learner.{name}={facts[name]}, not {value}; use that")
        self._engine().load_state(state)
        torch.set_rng_state(load_file(state / f"rng-{self.rank}.safetensors")["cpu"])
        self.reference_dir = (Path(directory).parent / facts["reference"]).resolve()
        self.steps = int(facts["steps"])
        return self.steps

    def publish(self, prefix: str, version: int) -> WeightManifest | None:
        """Write the weights where the carrier has room, for shared memory under the prefix that the first push after
        `load` names. Returns the manifest on rank 0, else None.
        """
        engine = self._engine()
        if self.rank:
            for _ in engine.checkpoint_parameters():
                continue  # takes part in the gathering
            return None
        if self.publisher is None:
            self.publisher = WeightPublisher(
                open_carrier(self.config.carrier, prefix=prefix),
                shapes=engine.checkpoint_shapes(),
                dtype=self.config.wire_dtype,
                sparse=self.config.sparse_push,
            )
        return self.publisher.push(version, buckets=engine.checkpoint_parameters())

    def payload(self, version: int, *, whole: bool) -> np.ndarray:
        """The bytes of the last push, on rank 0: its changes, or the whole weights. See `WeightPublisher.payload`."""
        if self.publisher is None:
            raise ValueError("no weights are held here; call publish first, and ask rank 0")
        return self.publisher.payload(version, whole=whole)

    def close(self) -> None:
        """Free the model and the weights held for a push. The rank can `load` again."""
        self._close_publisher()
        self.routing = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        self.reference = None

    def _reference(self) -> PreTrainedModel:
        """The weights that the stage began with, frozen; read at their first use."""
        if self.reference is None:
            dtype = torch.bfloat16 if self.config.bf16 else torch.float32
            model = _read_model(self.reference_dir).to(device=self._engine().device, dtype=dtype)
            self.reference = model.eval().requires_grad_(False)
        return self.reference

    def _close_publisher(self) -> None:
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None

    def _engine(self) -> DeepSpeedEngine:
        if self.engine is None:
            raise ValueError("no model is loaded; call load first")
        return self.engine

    def _routing(self) -> Routing:
        assert self.routing is not None  # beside the engine
        return self.routing


def micro_batch_loss(
    engine: DeepSpeedEngine, micro_batch: MicroBatch, *, config: LossConfig, reference: PreTrainedModel | None = None
) -> Loss:
    """Forward pass and loss of one micro-batch; `reference` is what the policy should stay near, None where it is free."""
    ids_BT = torch.from_numpy(micro_batch.ids_BT).to(engine.device)
    weights_BT = torch.from_numpy(micro_batch.weights_BT).to(engine.device)
    logits_BTV = engine.logits(ids_BT, micro_batch.prompts)
    logprobs_BT = token_logprobs(logits_BTV, ids_BT)
    if config.objective == "nll":
        return nll_loss(logprobs_BT, weights_BT)
    ref_BT = None
    if reference is not None:
        with torch.no_grad():
            logits_ref_BTV = causal_logits(reference, reference.config, ids_BT, micro_batch.prompts)
            ref_BT = token_logprobs(logits_ref_BTV, ids_BT)
    return policy_loss(
        logprobs_BT,
        weights_BT,
        torch.from_numpy(micro_batch.advantages_BT).to(engine.device),
        torch.from_numpy(micro_batch.behaviour_BT).to(engine.device),
        objective=objective(config),
        ref_BT=ref_BT,
        entropy_BT=token_entropies(logits_BTV) if config.entropy_bonus else None,
    )


def _read_model(directory: Path) -> PreTrainedModel:
    """A model in float32 that computes what the engines compute. Raises `ValueError` where the directory holds none."""
    if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
        raise ValueError(f"{directory} is not a model directory: it needs config.json and *.safetensors")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    mamba_scan.match_engine(model)
    return model


def _sum_over_ranks(totals: dict[str, torch.Tensor]) -> dict[str, float]:
    """The sums of all ranks added up. Every rank has the same names, in the same order."""
    values = torch.stack(list(totals.values()))
    if torch.cuda.is_available():
        values = values.cuda()  # nccl moves device memory only
    torch.distributed.all_reduce(values)
    return dict(zip(totals, values.tolist(), strict=True))


def _means(sums: dict[str, float], *, denominator: float) -> dict[str, float]:
    """The loss over the batch's denominator, everything else over the weight of its tokens."""
    weight = sums.pop("weight")
    return {name: value / (denominator if name == "loss" else weight) for name, value in sums.items()}


def _read_tokenizer(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files, kept here: the checkpoint that a run continues from may be gone when it saves the next."""
    return {path.name: path.read_bytes() for pattern in TOKENIZER_FILES for path in directory.glob(pattern)}
