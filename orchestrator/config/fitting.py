"""Checks of a stage's settings against the run's, and of a model's thinking against its limits."""

from pathlib import Path

from temper.learner.config import require_together
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.config.supervised import SampledDataConfig, SupervisedConfig
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.config import RolloutConfig
from temper.rollout.declared_turns import AS_IT_IS, DeclaredTurns
from temper.rollout.sampling import PLAIN, Sampling

SEQUENCE_ROUNDING = 0.005
"""How far bfloat16 moves the geometric mean of pi / mu over 32 tokens at equal weights: 2.4 deviations of 0.0117 / sqrt(32).
`docs/gpu.md` measures a mean difference of 0.0093 nats a token, so the deviation of a token is 0.0117."""


def fit_training(part: SupervisedConfig | LoopConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` if a training stage, `name` in messages, refers to missing parts of the run."""
    require_together(part.optim, config.learner, setting=f"{name}.optim")
    for env_id, share in part.shares.items():
        if env_id not in config.envs:
            raise ValueError(
                f"{name}.shares.{env_id} is not among the run's envs: {', '.join(config.envs) or 'there are none'}"
            )
        if not share >= 0:
            raise ValueError(f"{name}.shares.{env_id}={share} must be 0 or more")
        env = config.envs[env_id]
        if share and env.preset is not None and env.data is None:
            raise ValueError(
                f"{name}.shares.{env_id}={share}: the benchmark {env.preset} is for evaluation only; remove the share, or set "
                f"envs.{env_id}.data to training rows"
            )


def fit_supervised(part: SupervisedConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` as `fit_training`, and for a batch that the ranks cannot share evenly."""
    fit_training(part, config, name)
    if part.batch_size % config.learner.data_parallel:
        raise ValueError(
            f"{name}.batch_size={part.batch_size} is not divisible by {config.learner.data_parallel} "
            f"(learner.ranks={config.learner.ranks} / learner.sequence_parallel={config.learner.sequence_parallel}); take a "
            "multiple"
        )


def fit_loop(part: LoopConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` as `fit_training`, for budgets larger than episodes, and for fewer answers than ranks."""
    fit_training(part, config, name)
    check_trust_region(part, name)
    check_sequence_clip(part, config, name)
    check_budget_fits(part.thinking.largest_budget or None, config.rollout)
    if part.answers_per_step < config.learner.data_parallel:
        raise ValueError(
            f"{name}: {part.answers_per_step} answers in a step are fewer than {config.learner.data_parallel} "
            f"(learner.ranks={config.learner.ranks} / learner.sequence_parallel={config.learner.sequence_parallel})"
        )


def check_trust_region(part: LoopConfig, name: str) -> None:
    """Raise `ValueError` if groups may lag by 2 or more versions and no clip or mask bounds the update."""
    loss = part.loss
    masks = loss.token_bounds or loss.sequence_bounds
    clips = loss.surrogate != "reinforce" and (part.updates > 1 or loss.against_rollout)
    if part.max_lag < 2 or masks or clips:
        return
    raise ValueError(
        f"{name}.max_lag={part.max_lag} without a trust region: set {name}.loss.token_range=[0.5,5], "
        f"{name}.loss.sequence_range or {name}.loss.old_policy=rollout, make several updates of a batch "
        f"({name}.updates_per_step, {name}.epochs), or lower it to 1"
    )


def check_sequence_clip(part: LoopConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` if bfloat16 rounding alone would leave gspo's clip of the ratio to the engine."""
    loss = part.loss
    rounds = config.learner.bf16 or config.rollout.engine.dtype in ("bfloat16", "auto")
    if not (rounds and loss.surrogate == "gspo" and loss.against_rollout and min(loss.clip) < SEQUENCE_ROUNDING):
        return
    types = f"learner.bf16={str(config.learner.bf16).lower()} and rollout.engine.dtype={config.rollout.engine.dtype}"
    raise ValueError(
        f"{name}.loss.surrogate=gspo clips the ratio to the engine at {loss.clip[0]:g} and {loss.clip[1]:g}, but with {types} "
        f"rounding alone moves it by up to {SEQUENCE_ROUNDING:g}; set {name}.loss.old_policy=trainer with "
        f"{name}.updates_per_step or {name}.epochs above 1, or train and sample in float32"
    )


def check_colocated(part: object, config: RunConfig, name: str) -> None:
    """Raise `ValueError` if the instance `name` would sample and learn at once on colocated devices."""
    if config.placement == "colocated" and isinstance(part, LoopConfig) and part.max_lag:
        raise ValueError(
            f"{name}.max_lag={part.max_lag} with placement=colocated: the engines sleep while the learner works. Set "
            f"{name}.max_lag=0, or placement=dedicated. For fewer phase changes, raise {name}.groups_per_step and "
            f"{name}.updates_per_step"
        )


def check_budget_fits(budget: int | None, rollout: RolloutConfig, sampling: Sampling = PLAIN) -> None:
    """Raise `ValueError` if an episode, or a turn by `sampling`, has fewer tokens than the largest budget and an answer."""
    if budget is None:
        return
    answer = rollout.thinking.answer_tokens or (rollout.limits.turn_tokens if sampling.max_tokens is None else 1)
    needed = budget + rollout.thinking.grace + answer
    limits = {"rollout.limits.total_tokens": rollout.limits.total_tokens, "sampling.max_tokens": sampling.max_tokens}
    for setting, limit in limits.items():
        if limit is not None and needed > limit:
            raise ValueError(
                f"a thinking budget of {budget} tokens, {rollout.thinking.grace} of grace and {answer} for the answer exceed "
                f"{setting}={limit}; raise it, or lower the budget or rollout.thinking.answer_tokens"
            )


def fit_sampled_data(part: SampledDataConfig, config: RunConfig, name: str) -> None:
    fit_supervised(part, config, name)
    check_sampling(name, part.sampling, config.rollout)


def check_sampling(name: str, sampling: Sampling, rollout: RolloutConfig) -> None:
    """Raise `ValueError` if engines with speculative decoding do not support the sampling of the stage `name`."""
    guess = rollout.engine.speculation
    if sampling.min_p and guess != "off":
        raise ValueError(
            f"{name}.sampling.min_p={sampling.min_p}: vLLM does not support it with rollout.engine.speculation={guess}; set "
            f"rollout.engine.speculation=off, or use {name}.sampling.top_p"
        )


def check_thinking(
    model: Path, thinking: ThinkingConfig, *, limited: bool, left_out: bool, declared: DeclaredTurns = AS_IT_IS
) -> None:
    """Raise `ValueError` if the model's thinking cannot be limited or disabled as requested."""
    from temper.rollout.budget.rule import ThinkingTags  # imports transformers
    from temper.rollout.episodes.renderer import Renderer
    from temper.rollout.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model, declared)
    if limited:
        ThinkingTags(tokenizer, closing=thinking.closing)
    if left_out:
        Renderer(tokenizer, thinking).check_modes()
