"""Seconds of each part of a simulated run, planned from the peaks of named GPUs."""

from dataclasses import dataclass, replace

from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.step_time import card_rates, pass_seconds, prompt_seconds

START_S = 120.0
"""Seconds of an engine's start in addition to reading the weights: processes, graphs, a first pass. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Seconds of an engine's pass, of a learner's step, of a push and of a start.

    `pass_s[n]` is a pass with n sequences, including their share of prompts; an engine has as many places as that has entries,
    less the one for none. A step of the learner takes `learn_fixed_s` and `learn_token_s` for each token of its sequences,
    `prompt_tokens` of which were not sampled in each.
    """

    pass_s: tuple[float, ...]
    learn_token_s: float
    learn_fixed_s: float
    publish_s: float
    load_s: float
    transport: str
    prompt_tokens: float
    start_s: float

    @property
    def places(self) -> int:
        """Sequences that an engine runs at once."""
        return len(self.pass_s) - 1


def planned_speeds(planner: Planner, *, engines: int, times: float) -> Speeds:
    """Return the speeds of so many engines and of a step and a learner of `times` the plan's size, on machines of its kind.

    More ranks send more to each other, over more machines, and all engines read the model from the same storage.

    Raise `ValueError` if the plan names no GPUs, or the model does not fit on them.
    """
    planned, engine, fleet = planner.work, planner.engine, planner.fleet
    if planned is None:
        raise ValueError("`stages` lists neither rl nor distill: there is no loop to simulate")
    if planner.wanted.shared or planner.halves:
        raise ValueError("engines and learner would share devices, which is not simulated; set placement=dedicated")
    if engine is None or fleet is None:
        raise ValueError(
            "the speeds of engines and learner are unknown; name GPUs that hold the model: --gpus 8xH100-80G"
        )
    assumed, ranks = planner.assumptions, max(1, round(times * fleet.learner.ranks))
    work = replace(planned, groups=max(1, round(times * planned.groups)))
    fleet = replace(
        fleet,
        engines=engines,
        learner=replace(fleet.learner, ranks=ranks),
        spread=ranks + engines * engine.processes > fleet.together,
        ranks_spread=ranks > fleet.together,
    )
    rates = card_rates(fleet, work, assumed)
    most = min(fleet.engine.max_sequences, engine.sequences(int(work.prompt_tokens + work.answer_tokens)))
    prompts = prompt_seconds(fleet, work, assumed)
    passes = [pass_seconds(fleet, work, assumed, batch=n) + n * prompts for n in range(1, most + 1)]
    return Speeds(
        pass_s=(0.0, *passes),
        learn_token_s=work.epochs / rates.trained_per_s,
        learn_fixed_s=rates.updates_s,
        publish_s=rates.publish_s,
        load_s=rates.load_s,
        transport=fleet.push.transport,
        prompt_tokens=work.prompt_tokens,
        start_s=START_S + engines * engine.processes * engine.weights / (assumed.storage_gbs * 1e9),
    )
