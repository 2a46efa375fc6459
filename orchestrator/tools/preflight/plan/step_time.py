"""The seconds of a step, from the peaks of named GPUs (a roofline).

Decoding is bound by what a pass reads: the weights once, of experts those that any sequence goes to, and the cache of each
sequence (Pope et al., "Efficiently Scaling Transformer Inference", section 2, 2022). Learning is bound by its products: 2
operations a parameter and token forward, 4 backward (Kaplan et al., "Scaling Laws for Neural Language Models", section 2.1,
2020), the operations of attention's scores, and ZeRO's transfers between ranks and to main memory, one after the other.

With G for generating, L for learning and publishing, and D for the load that pauses the engines, a step takes G + L + D at
`max_lag` 0. Above it both sides work at once: max(G + D, L). Halves of one GPU compute by turns: there both sides add up.
"""

import math
from dataclasses import dataclass

from temper.learner.config import LearnerConfig
from temper.learner.weight_sender import MOST_SENDERS
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Card
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory
from temper.orchestrator.tools.preflight.plan.memory.host_memory import PushPlan
from temper.orchestrator.tools.preflight.plan.memory.layers import FLOAT32
from temper.orchestrator.tools.preflight.plan.model import PlannedModel
from temper.orchestrator.tools.preflight.plan.work import Work
from temper.rollout.engines.config import EngineConfig

DENSE, EXPERTS = 0.3, 0.1
"""Shares of the peak that passes reach by kind of model. NVIDIA measured 0.09 for Nemotron 3 Nano 30B-A3B with transformers 5
on 8 H100s (2026). The other is assumed."""
PREFIX_UNIT = 16
"""Tokens by which prefixes match (`prefix_match_unit` of vLLM, a page of keys in models without states)."""
STATE_TRAFFIC = 28
"""Bytes a trained parameter that a step of AdamW reads and writes: float32 weights, gradient, moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens a second of one engine and of all ranks, and the seconds of a push."""

    sampled_per_s: float
    """Tokens that an engine samples a second, prompts computed beside them."""
    token_s: float
    """Seconds from one token of a sequence to its next."""
    trained_per_s: float
    """Tokens that the learner trains on a second, all ranks together, those of a further epoch again."""
    updates_s: float
    """Seconds of the optimiser's updates, including transfers of offloaded states."""
    publish_s: float
    """Seconds of a push on the learner's side."""
    load_s: float
    """Seconds of a push on the engines' side, which generate nothing meanwhile."""
    source: str
    """The name of the GPUs."""
    first_push_s: float = 0.0
    """Further seconds of the first push, to connect engines and ranks."""
    flops_used: float = 0.0
    """Share of the peak of the learner's GPUs that its operations are, with layers computed again. 0 if it is
    not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The hardware, the model and the settings that rates depend on."""

    card: Card
    model: PlannedModel
    learner: LearnerConfig
    engine: EngineConfig
    memory: EngineMemory
    engines: int
    push: PushPlan
    together: int
    """GPUs of a machine."""
    spread: bool
    """Whether ranks and engines together lie on several machines."""
    ranks_spread: bool
    """Whether the ranks alone do: they are placed on as few as hold them."""
    scores: float
    """Further passes forward over what is trained, in passes of the model itself: of the old policy, a reference, a teacher."""
    scored: int
    """Parameters that these further passes go through."""
    updates: int
    """Optimiser steps of a step of the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step of the loop by part; parts of both sides overlap above `max_lag` 0."""

    rates: Rates
    work: Work
    generate_s: float
    learn_s: float
    publish_s: float
    load_s: float
    shift_s: float
    """Seconds in which learner and engines hand each other the devices that they share."""
    step_s: float
    longest_s: float
    """Seconds of the longest answer."""

    @property
    def limited_by(self) -> str:
        """The side that the other waits for."""
        return "generating" if self.generate_s + self.load_s >= self.learn_s + self.publish_s else "learning"

    @property
    def sampled_per_s(self) -> float:
        """Sampled tokens a second, over all engines and the whole step."""
        return self.work.sampled / self.step_s

    @property
    def hours(self) -> float:
        """Hours of all steps, without evaluations and starts."""
        return self.work.steps * self.step_s / 3600

    @property
    def tokens(self) -> float:
        """Sampled tokens of all steps."""
        return self.work.steps * self.work.sampled


def step_time(rates: Rates, work: Work, *, engines: int, one_device: bool = False, shift_s: float = 0.0) -> StepTime:
    """Return the seconds of a step on so many engines; `one_device`: learner and engine are halves of one GPU."""
    longest_s = work.longest_answer * rates.token_s
    together = work.sampled / engines / rates.sampled_per_s
    generate_s = together if work.lag else max(together, longest_s)
    learn_s = work.epochs * work.trained / rates.trained_per_s + rates.updates_s
    first, second = generate_s + rates.load_s, learn_s + rates.publish_s
    overlaps = work.lag and not one_device
    return StepTime(
        rates=rates,
        work=work,
        generate_s=generate_s,
        learn_s=learn_s,
        publish_s=rates.publish_s,
        load_s=rates.load_s,
        shift_s=shift_s,
        step_s=max(first, second) if overlaps else first + second + shift_s,
        longest_s=longest_s,
    )


def card_rates(fleet: Fleet, work: Work, assumptions: Assumptions) -> Rates:
    """Return the rates of GPUs of one kind."""
    token_s, batch = decoding(fleet, work, assumptions)
    publish_s, load_s = pushing(fleet, assumptions)
    learn_s = learning(fleet, work, assumptions)
    groups = min(MOST_SENDERS, fleet.learner.ranks) if fleet.push.transport == "broadcast" else 0
    return Rates(
        sampled_per_s=1 / (token_s / batch + prompt_seconds(fleet, work, assumptions)),
        token_s=token_s,
        trained_per_s=work.epochs * work.trained / learn_s,
        updates_s=fleet.updates * _update_s(fleet, assumptions),
        publish_s=publish_s,
        load_s=load_s,
        source=fleet.card.name,
        first_push_s=groups * assumptions.connect_s,
        flops_used=computing(fleet, work, assumptions) * learning_share(fleet, assumptions) / learn_s,
    )


def _flops(fleet: Fleet, share: float, gpus: int) -> float:
    return share * fleet.card.peak_tflops * 1e12 * gpus


def prompt_seconds(fleet: Fleet, work: Work, assumptions: Assumptions) -> float:
    """Return the seconds that an engine computes prompts, for each token that it samples.

    With cached prefixes all answers of a group but the first compute only the tokens after the last whole unit of the prompt,
    and always at least one.
    """
    cached = fleet.engine.prefix_caching != "off" and not fleet.learner.router_replay
    unit = int(fleet.engine.extra.get("prefix_match_unit") or PREFIX_UNIT)
    found = max(0, math.ceil(work.prompt_tokens) - 1) // unit * unit if cached else 0
    prompts = (work.prompt_tokens - found * (1 - 1 / work.group_size)) / work.answer_tokens
    return prompts * 2 * fleet.model.active / _flops(fleet, assumptions.flops_prefill, fleet.engine.processes)


def decoding(fleet: Fleet, work: Work, assumptions: Assumptions) -> tuple[float, float]:
    """Return the seconds of a decoding pass of an engine, and how many sequences are in it."""
    batch = sequences_in_a_pass(fleet.memory, work, most=fleet.engine.max_sequences, engines=fleet.engines)
    return pass_seconds(fleet, work, assumptions, batch=batch), batch


def pass_seconds(fleet: Fleet, work: Work, assumptions: Assumptions, *, batch: float) -> float:
    """Return the seconds of a decoding pass of an engine with so many sequences."""
    memory, model, processes = fleet.memory, fleet.model, fleet.engine.processes
    length = work.prompt_tokens + work.answer_tokens / 2
    cache = batch * (length * memory.token_bytes + 2 * memory.state_bytes)
    read = memory.weights * _read_share(model, batch) + cache
    reading = read / (assumptions.bandwidth_decoding * fleet.card.bandwidth_gbs * 1e9)
    computing = 2 * model.active * batch / _flops(fleet, assumptions.flops_prefill, processes)
    return max(reading, computing) + assumptions.pass_ms / 1000


def sequences_in_a_pass(memory: EngineMemory, work: Work, *, most: int, engines: int) -> float:
    """Return how many sequences an engine decodes at once: as many as it may, as fit, as are in flight."""
    fitting = memory.sequences(int(work.prompt_tokens + work.answer_tokens))
    return max(1.0, min(most, fitting, work.in_flight / engines))


def _read_share(model: PlannedModel, batch: float) -> float:
    """Return the share of the weights that a pass reads: of the experts those that any of its sequences goes to, if each goes
    anywhere alike.
    """
    routed = model.parts.get("routed experts", 0)
    if not routed:
        return 1.0
    chosen = 1 - (model.parameters - model.active - _looked_up(model)) / routed
    return 1 - routed / model.parameters * (1 - chosen) ** batch


def _looked_up(model: PlannedModel) -> int:
    return model.parts.get("embedding", 0) if "output layer" in model.parts else 0


def learning(fleet: Fleet, work: Work, assumptions: Assumptions) -> float:
    """Return the seconds of the passes over a step's sequences, and of the ranks' transfers to each other and to main
    memory meanwhile.
    """
    tokens, sent = _pass_tokens(fleet, work), fleet.learner.offload != "none"
    offloaded = _offloading(fleet, work.epochs, tokens, assumptions) if sent else 0.0
    return computing(fleet, work, assumptions) + _sending(fleet, work.epochs, tokens, assumptions) + offloaded


def _pass_tokens(fleet: Fleet, work: Work) -> float:
    """Return the tokens of a step's passes, prompts that are shared once."""
    alone = fleet.learner.shared_prompts and not fleet.learner.router_replay
    return work.trained - (work.answers - work.groups) * work.prompt_tokens if alone else work.trained


def learning_share(fleet: Fleet, assumptions: Assumptions) -> float:
    """Return the share of the peak that the learner's passes reach."""
    return assumptions.flops_learning or (EXPERTS if "routed experts" in fleet.model.parts else DENSE)


def computing(fleet: Fleet, work: Work, assumptions: Assumptions) -> float:
    """Return the seconds of the operations of a step's passes."""
    learner, model = fleet.learner, fleet.model
    backward = 2 if learner.lora.rank else 4
    again = 2 if learner.recompute == "full" else 0
    passes = work.epochs * (2 + backward + again) + 2 * fleet.scores
    scores = 2 * sum(layer.queries for layer in model.layers) * (work.prompt_tokens + work.answer_tokens) / 2
    operations = _pass_tokens(fleet, work) * passes * (model.active + scores)
    return operations / _flops(fleet, learning_share(fleet, assumptions), learner.ranks)


def _micro_batches(fleet: Fleet, tokens: float) -> float:
    """Return the passes of a rank over so many tokens of all ranks."""
    return max(1.0, tokens / fleet.learner.ranks / fleet.learner.micro_batch_tokens)


def _offloading(fleet: Fleet, epochs: int, tokens: float, assumptions: Assumptions) -> float:
    """Return the seconds to add each pass's gradient to the one in main memory: it comes to the GPU and goes back."""
    share = FLOAT32 * fleet.model.trained / fleet.learner.ranks
    return epochs * _micro_batches(fleet, tokens) * 2 * share / (assumptions.pcie_gbs * 1e9)


def _sending(fleet: Fleet, epochs: int, tokens: float, assumptions: Assumptions) -> float:
    """Return what ZeRO takes to gather the weights and to add up gradients (Rajbhandari et al., section 7, 2020).

    Each rank sends, and gets, all of a tensor but its own share: once to gather it, once to add it up where each rank keeps its
    share of the sum, and twice where each has it all, of which DeepSpeed then takes a share at stages 1 and 2 too. These gather
    the updated weights after each update; stage 3 gathers them for each pass forward and backward, and adds up after each as
    stage 2 does.
    """
    learner, model = fleet.learner, fleet.model
    if learner.ranks == 1:
        return 0.0
    stage, once = learner.zero_stage, _micro_batches(fleet, tokens)
    width = 2 if learner.bf16 else FLOAT32
    if stage == 3:
        gathered = once * width * (2 * epochs * model.parameters + fleet.scored)
    else:
        gathered = fleet.updates * width * model.trained if stage else 0.0
    times = epochs * once if stage >= 2 else fleet.updates
    added = FLOAT32 * model.trained * times * (1 if stage == 3 else 2)
    others = (learner.ranks - 1) / learner.ranks
    adapters = fleet.together if fleet.ranks_spread else 0
    return (gathered + added) * others / (_link(fleet, assumptions, adapters=adapters) * 1e9)


def _link(fleet: Fleet, assumptions: Assumptions, *, adapters: int) -> float:
    """Return the GB/s between GPUs: by so many network adapters of a machine at once, or by its own links alone with 0.

    A collective has a ring for each adapter, so that a machine's traffic is shared out over them.
    """
    slowest = min(fleet.card.link_gbs, adapters * assumptions.network_gbs) if adapters else fleet.card.link_gbs
    return assumptions.link_share * slowest


def _update_s(fleet: Fleet, assumptions: Assumptions) -> float:
    share = fleet.model.trained / (fleet.learner.ranks if fleet.learner.zero_stage else 1)
    away = fleet.learner.offload != "none"
    return STATE_TRAFFIC * share / ((assumptions.host_copy_gbs if away else fleet.card.bandwidth_gbs) * 1e9)


def pushing(fleet: Fleet, assumptions: Assumptions) -> tuple[float, float]:
    """Return the seconds that a push takes at the learner, and while the engines load it.

    vLLM loads it tensor by tensor, each by a call of Python.
    """
    push, copy_s = fleet.push, fleet.push.sent / (assumptions.host_copy_gbs * 1e9)
    tensors_s = fleet.model.push_tensors * assumptions.tensor_ms / 1000
    if push.transport == "broadcast":
        return 0.0, tensors_s + push.sent / (_link(fleet, assumptions, adapters=int(fleet.spread)) * 1e9)
    if push.transport == "cuda_ipc":
        copy_s = 2 * push.sent / (fleet.card.bandwidth_gbs * 1e9)
    brought = push.sent / (assumptions.ray_gbs * 1e9) if push.transport == "shared_memory" and fleet.spread else 0.0
    return copy_s, copy_s + brought + tensors_s
