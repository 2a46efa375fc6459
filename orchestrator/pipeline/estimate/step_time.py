"""The seconds of a step, from the peaks of named GPUs (a roofline).

Decoding is bound by the bytes that a pass reads: the weights once, only the experts in use, and the cache of each sequence
(Pope et al., "Efficiently Scaling Transformer Inference", section 2, 2022). Learning is bound by its products: 2 operations per
parameter and token forward, 4 backward (Kaplan et al., "Scaling Laws for Neural Language Models", section 2.1, 2020), the
operations of attention scores, and ZeRO's transfers between ranks and to main memory in sequence.

G is generation, L is learning and publishing, and D is the load that pauses the engines. A step takes G + L + D at `max_lag` 0.
Above it both sides overlap: max(G + D, L). Halves of one GPU alternate, so both sides add up.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.learner.config import LearnerConfig
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Card
from temper.orchestrator.pipeline.estimate.layers import FLOAT32
from temper.orchestrator.pipeline.estimate.memory import EngineMemory, PushPlan
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.config import EngineConfig
from temper.rollout.weights.config import BROADCAST, CUDA_IPC, SHARED_MEMORY

if TYPE_CHECKING:  # counting a model imports its classes, which takes seconds
    from temper.orchestrator.pipeline.estimate.model import PlannedModel

DENSE, HYBRID, EXPERTS = 0.3, 0.18, 0.1
"""Shares of the peak that passes reach by kind of model. NVIDIA measured 0.09 for Nemotron 3 Nano 30B-A3B with transformers 5
on 8 H100s (2026). The others are assumed: Mamba layers without `causal-conv1d` reach 0.15 to 0.22."""
FASTEST, SLOWEST = 0.9, 2.0
"""The time of a run as a multiple of the estimate, by published runs and usual rates (docs/hardware.md)."""
PREFIX_UNIT = 16
"""Granularity of prefix matches in tokens (`prefix_match_unit` of vLLM, a page of keys in models without states)."""
STATE_TRAFFIC = 28
"""Bytes a trained parameter that a step of AdamW reads and writes: float32 weights, gradient, moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A step of `rl` or `distill`. Lengths are means."""

    stage: str
    steps: int
    groups: int
    """Groups that are trained on."""
    group_size: int
    in_flight: int
    """Answers that are sampled at once, over all engines."""
    prompt_tokens: float
    """Input tokens of an answer's sequence, including environment messages."""
    answer_tokens: float
    longest_answer: float
    kept: float
    """Share of the groups that are trained on."""
    lag: float
    """Most versions that a group is behind, in the mean, when it is trained on."""
    epochs: int = 1
    turns: int = 1
    """Turns of an answer."""

    @property
    def answers(self) -> int:
        """Answers that are trained on."""
        return self.groups * self.group_size

    @property
    def sampled(self) -> float:
        """Sampled tokens, including dropped groups."""
        return self.answers * self.answer_tokens / self.kept

    @property
    def trained(self) -> float:
        """Tokens of the sequences that are trained on, including prompts."""
        return self.answers * (self.prompt_tokens + self.answer_tokens)


def work_of(name: str, loop: LoopConfig, limits: EpisodeLimits, assumed: Assumptions, *, turns: int | None) -> Work:
    """Return the work of a stage's step. `turns` is the maximum per episode, None without a limit.

    Raise `ValueError` if no groups are assumed to be kept.
    """
    if not 0 < assumed.kept_groups <= 1:
        raise ValueError(f"--assume kept_groups={assumed.kept_groups:g}: must be above 0 and at most 1")
    prompt, answer, most = mean_lengths(limits, assumed, turns=turns)
    return Work(
        stage=name,
        steps=loop.steps,
        groups=loop.groups_per_step,
        group_size=loop.group_size,
        in_flight=loop.slots * loop.group_size,
        prompt_tokens=prompt,
        answer_tokens=answer,
        longest_answer=min(most, max(1.0, assumed.longest_times) * answer),
        kept=assumed.kept_groups,
        lag=float(loop.max_lag if loop.over_sampling is None else loop.over_sampling),
        epochs=loop.epochs,
        turns=math.ceil(most / limits.turn_tokens),
    )


def mean_lengths(limits: EpisodeLimits, assumed: Assumptions, *, turns: int | None) -> tuple[float, float, float]:
    """Return the assumed mean tokens of a prompt and of an answer, all its turns together, and the most of an answer."""
    prompt = min(assumed.prompt_tokens, limits.total_tokens / 4)
    room = max(1.0, limits.total_tokens - prompt)
    most = room if turns is None else min(room, float(turns * limits.turn_tokens))
    return prompt, min(most, assumed.answer_tokens or assumed.answer_share * most), most


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The hardware, the model, the settings and the work of a step, from which its seconds follow."""

    card: Card
    model: "PlannedModel"
    learner: LearnerConfig
    engine: EngineConfig
    memory: EngineMemory
    engines: int
    gpus: int
    """GPUs of ranks and engines."""
    together: int
    """GPUs of a machine. Ranks are placed on as few machines as hold them."""
    push: PushPlan
    scores: float
    """Further forward passes per step, in passes of the model: old policy, reference, teacher."""
    scored: int
    """Parameters that these further passes go through."""
    updates: int
    """Optimiser steps of a step of the loop."""
    work: Work
    assumed: Assumptions

    def _flops(self, share: float, gpus: int) -> float:
        return share * self.card.peak_tflops * 1e12 * gpus

    @property
    def prompt_s(self) -> float:
        """Seconds that an engine computes prompts, per sampled token.

        With prefix caching, only the first answer of a group computes the whole prompt. The others compute the tokens after its
        last whole unit, at least one. Without it, each further turn computes the prompt and all earlier turns again.
        """
        unit, work = int(self.engine.extra.get("prefix_match_unit") or PREFIX_UNIT), self.work
        if self.memory.caches_prefixes:
            found = max(0, math.ceil(work.prompt_tokens) - 1) // unit * unit
            prompts = work.prompt_tokens - found * (1 - 1 / work.group_size)
        else:
            prompts = work.turns * work.prompt_tokens + (work.turns - 1) / 2 * work.answer_tokens
        operations = 2 * self.model.active * prompts / work.answer_tokens
        return operations / self._flops(self.assumed.flops_prefill, self.engine.processes)

    @property
    def places(self) -> int:
        """Sequences that an engine may run at once, and that fit."""
        fitting = self.memory.sequences(int(self.work.prompt_tokens + self.work.answer_tokens))
        return min(self.engine.max_sequences, fitting)

    @property
    def batch(self) -> float:
        """Sequences that an engine decodes at once: no more than are in flight."""
        return max(1.0, min(self.places, self.work.in_flight / self.engines))

    def pass_s(self, batch: float) -> float:
        """Return the seconds of a decoding pass of an engine with so many sequences."""
        assumed, memory = self.assumed, self.memory
        length = self.work.prompt_tokens + self.work.answer_tokens / 2
        cache = batch * (length * memory.token_bytes + 2 * memory.state_bytes)
        read = memory.weights * self._read_share(batch) + cache
        reading = read / (assumed.bandwidth_decoding * self.card.bandwidth_gbs * 1e9)
        computing = 2 * self.model.active * batch / self._flops(assumed.flops_prefill, self.engine.processes)
        return max(reading, computing) + assumed.pass_ms / 1000

    def _read_share(self, batch: float) -> float:
        """Return the share of the weights that a pass reads. Every expert is as likely as another to be gone to."""
        model, routed = self.model, self.model.parts.get("routed experts", 0)
        if not routed:
            return 1.0
        looked_up = model.parts.get("embedding", 0) if "output layer" in model.parts else 0
        chosen = 1 - (model.parameters - model.active - looked_up) / routed
        return 1 - routed / model.parameters * (1 - chosen) ** batch

    @property
    def learn_s(self) -> float:
        """Seconds of the passes over a step's sequences, and of transfers between ranks and to main memory."""
        return self._products_s + self._sending_s + self._dispatch_s + self._offloading_s

    @property
    def _pass_tokens(self) -> float:
        """Tokens of a step's passes, prompts that are shared once."""
        work, shares = self.work, self.learner.shared_prompts and not self.learner.router_replay
        return work.trained - (work.answers - work.groups) * work.prompt_tokens if shares else work.trained

    @property
    def _learning_share(self) -> float:
        """Share of the peak that the learner's passes reach."""
        hybrid = any(layer.mamba for layer in self.model.layers)
        usual = EXPERTS if "routed experts" in self.model.parts else HYBRID if hybrid else DENSE
        return self.assumed.flops_learning or usual

    @property
    def _products_s(self) -> float:
        """Seconds of the operations of a step's passes."""
        work, learner = self.work, self.learner
        backward = 2 if learner.lora.rank else 4
        again = 2 if learner.recompute == "full" else 0
        passes = work.epochs * (2 + backward + again) + 2 * self.scores
        scores = 2 * sum(layer.queries for layer in self.model.layers) * (work.prompt_tokens + work.answer_tokens) / 2
        operations = self._pass_tokens * passes * (self.model.active + scores)
        return operations / self._flops(self._learning_share, learner.ranks)

    @property
    def _micro_batches(self) -> float:
        """Passes of a rank over a step's tokens."""
        return max(1.0, self._pass_tokens / self.learner.ranks / self.learner.micro_batch_tokens)

    @property
    def _offloading_s(self) -> float:
        """Seconds to add each pass's gradient to an offloaded gradient, which moves to the GPU and back."""
        if self.learner.offload == "none":
            return 0.0
        share = FLOAT32 * self.model.trained / self.learner.ranks
        return self.work.epochs * self._micro_batches * 2 * share / (self.assumed.pcie_gbs * 1e9)

    @property
    def _sending_s(self) -> float:
        """Seconds of ZeRO to gather weights and reduce gradients (Rajbhandari et al., section 7, 2020).

        Each rank sends and receives a whole tensor minus its share: once to gather, once for a reduce-scatter, twice for an
        all-reduce. DeepSpeed uses an all-reduce at stages 1 and 2 too. These stages gather the updated weights once per update.
        Stage 3 gathers them for each forward and backward pass, and reduces after each pass. Ranks that share experts each send
        their own to the ranks with the same ones. The ranks of a machine have all experts together, and share its network.
        """
        learner, model, epochs = self.learner, self.model, self.work.epochs
        if learner.ranks == 1:
            return 0.0
        stage, once, shared = learner.zero_stage, self._micro_batches, learner.expert_parallel
        width, adapters = 2 if learner.bf16 else FLOAT32, self.together if learner.ranks > self.together else 0
        others = (learner.ranks - 1) / learner.ranks
        sent = model.trained * others
        if shared > 1:
            alike = (1 - shared / learner.ranks) / (1 if adapters else shared)
            sent -= model.parts.get("routed experts", 0) * (others - alike)
        if stage == 3:
            gathered = once * width * (2 * epochs * model.parameters + self.scored) * others
        else:
            gathered = self.updates * width * sent if stage else 0.0
        times = epochs * once if stage >= 2 else self.updates
        added = FLOAT32 * sent * times * (1 if stage == 3 else 2)
        return (gathered + added) / (self._link_gbs(adapters) * 1e9)

    @property
    def _dispatch_s(self) -> float:
        """Seconds of the all-to-alls of shared experts: tokens to the owners of their experts and back, in each direction of a
        pass.
        """
        learner, shared = self.learner, self.learner.expert_parallel
        passes = self.work.epochs * (3 if learner.recompute == "full" else 2) + self.scores
        copies = sum(layer.copies * layer.hidden for layer in self.model.layers) * (shared - 1) / shared
        sent = 2 * (2 if learner.bf16 else FLOAT32) * copies * passes * self._pass_tokens / learner.ranks
        return sent / (self._link_gbs(int(shared > self.together)) * 1e9)

    def _link_gbs(self, adapters: int) -> float:
        """Return the GB/s between GPUs: over so many network adapters of a machine, or over its internal links with 0.

        A collective has a ring per adapter, which share a machine's traffic.
        """
        link, network = self.card.link_gbs, adapters * self.assumed.network_gbs
        return self.assumed.link_share * (min(link, network) if adapters else link)

    @property
    def updates_s(self) -> float:
        """Seconds of the optimiser's updates, including transfers of offloaded states."""
        share = self.model.trained / (self.learner.ranks if self.learner.zero_stage else 1)
        rate_gbs = self.card.bandwidth_gbs if self.learner.offload == "none" else self.assumed.host_copy_gbs
        return self.updates * STATE_TRAFFIC * share / (rate_gbs * 1e9)

    @property
    def push_s(self) -> tuple[float, float]:
        """The seconds of a push at the learner and at the engines. Each tensor costs `tensor_ms`."""
        assumed, spread, sent, transport = self.assumed, self.gpus > self.together, self.push.sent, self.push.transport
        copy_s = sent / (assumed.host_copy_gbs * 1e9)
        tensors_s = self.model.push_tensors * assumed.tensor_ms / 1000
        if transport == BROADCAST:
            return 0.0, tensors_s + sent / (self._link_gbs(int(spread)) * 1e9)
        if transport == CUDA_IPC:
            copy_s = 2 * sent / (self.card.bandwidth_gbs * 1e9)
        brought = sent / (assumed.ray_gbs * 1e9) if transport == SHARED_MEMORY and spread else 0.0
        return copy_s, copy_s + brought + tensors_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by part. Both sides overlap if `max_lag` is above 0."""

    work: Work
    generate_s: float
    learn_s: float
    publish_s: float
    """Seconds of a push on the learner's side."""
    load_s: float
    """Seconds of a push at the engines, during which they do not generate."""
    phase_s: float
    """Seconds to hand over shared devices between learner and engines."""
    step_s: float

    @property
    def limited_by(self) -> str:
        """The side that the other waits for."""
        return "generating" if self.generate_s + self.load_s >= self.learn_s + self.publish_s else "learning"

    @property
    def sampled_per_s(self) -> float:
        """Sampled tokens a second, over all engines and the whole step."""
        return self.work.sampled / self.step_s

    @property
    def hours(self) -> tuple[float, float]:
        """The fewest and the most hours of all steps, without evaluations and starts."""
        estimate = self.work.steps * self.step_s / 3600
        return FASTEST * estimate, SLOWEST * estimate

    @property
    def tokens(self) -> float:
        """Sampled tokens of all steps."""
        return self.work.steps * self.work.sampled


def step_time(fleet: Fleet, *, one_device: bool = False, phase_s: float = 0.0) -> StepTime:
    """Return the seconds of a step. `one_device`: learner and engine are halves of one GPU."""
    work, pass_s = fleet.work, fleet.pass_s(fleet.batch)
    engine_per_s = 1 / (pass_s / fleet.batch + fleet.prompt_s)
    publish_s, load_s = fleet.push_s
    together = work.sampled / fleet.engines / engine_per_s
    generate_s = together if work.lag else max(together, work.longest_answer * pass_s)
    learn_s = fleet.learn_s + fleet.updates_s
    first, second = generate_s + load_s, learn_s + publish_s
    overlaps = work.lag and not one_device
    return StepTime(
        work=work,
        generate_s=generate_s,
        learn_s=learn_s,
        publish_s=publish_s,
        load_s=load_s,
        phase_s=phase_s,
        step_s=max(first, second) if overlaps else first + second + phase_s,
    )
