"""What each part of a simulated run takes: planned from what GPUs can do, or measured by a run."""

from dataclasses import dataclass, replace

from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.rates import pass_seconds, prompt_seconds

START_S = 120.0
"""What an engine takes to start again after a death where nothing says it: files, graphs, a first pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Seconds of an engine's pass, of a learner's step and of a push.

    `pass_s[n]` is a pass with n sequences, those of prompts shared out among them; an engine has as many places as that has
    entries, less the one for none. A step of the learner takes `learn_fixed_s` and `learn_token_s` for each token of its
    sequences, `prompt_tokens` of which were not sampled in each. A group takes `beside_s` outside of the engine when its last
    token is sampled.
    """

    pass_s: tuple[float, ...]
    learn_token_s: float
    learn_fixed_s: float
    publish_s: float
    load_s: float
    transport: str
    prompt_tokens: float
    source: str
    beside_s: float = 0.0
    between_s: float = 0.0
    """What metrics and checkpoints take between two steps."""
    start_s: float = START_S

    @property
    def places(self) -> int:
        """Sequences that an engine runs at once."""
        return len(self.pass_s) - 1

    def with_learners(self, times: float) -> "Speeds":
        """Return those of a learner of so many times the ranks, which share each batch."""
        return replace(self, learn_token_s=self.learn_token_s / times)


def planned_speeds(planner: Planner, *, start_s: float = START_S) -> Speeds:
    """Return the speeds of the GPUs of a plan. Raise `ValueError` where it names none, or nothing would fit on them."""
    work, engine, fleet = planner.work, planner.engine, planner.fleet
    if work is None:
        raise ValueError("`stages` lists neither rl nor distill: there is no loop to simulate")
    if planner.wanted.shared or planner.halves:
        raise ValueError("engines and learner would share devices, which is not simulated: set placement=dedicated")
    rates = planner.rates
    if rates is None or engine is None or fleet is None:
        raise ValueError(
            "nothing says how fast engines and learner are: name GPUs that hold the model (--gpus 8xH100-80G), or a run whose "
            "durations were measured (--measured RUN)"
        )
    assumed, mean = planner.assumptions, int(work.prompt_tokens + work.answer_tokens)
    most = min(planner.config.rollout.engine.max_sequences, engine.sequences(mean))
    prompts = prompt_seconds(fleet, work, assumed)
    passes = [pass_seconds(fleet, work, assumed, batch=n) + n * prompts for n in range(1, most + 1)]
    if assumed.sampled_per_s:  # given for a full engine
        passes = [seconds * most / assumed.sampled_per_s / passes[-1] for seconds in passes]
    return Speeds(
        pass_s=(0.0, *passes),
        learn_token_s=work.epochs / rates.trained_per_s,
        learn_fixed_s=rates.updates_s,
        publish_s=rates.publish_s,
        load_s=rates.load_s,
        transport=planner.push.transport,
        prompt_tokens=work.prompt_tokens,
        source=rates.source,
        start_s=start_s,
    )
