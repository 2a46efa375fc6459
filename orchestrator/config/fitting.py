"""The checks of a stage's settings against those of the run, and of a model against the limits of its thoughts."""

from pathlib import Path

from temper.learner.config import require_together
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.config.supervised import SampledDataConfig, SupervisedConfig
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.worker import RolloutConfig
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.tokenizer import AS_IT_IS, DeclaredTurns, load_tokenizer


def fit_training(part: SupervisedConfig | LoopConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` where a training stage, `name` in messages, names what the run does not have."""
    require_together(part.optim, config.learner, setting=f"{name}.optim")
    for env_id, share in part.shares.items():
        if env_id not in config.envs:
            raise ValueError(
                f"{name}.shares.{env_id}: not among the run's envs, {', '.join(config.envs) or 'of which there are none'}"
            )
        if not share >= 0:
            raise ValueError(f"{name}.shares.{env_id}={share} must be 0 or more")
        env = config.envs[env_id]
        if share and env.preset is not None and env.data is None:
            raise ValueError(
                f"{name}.shares.{env_id}={share}: the preset {env.preset} is for evaluation and is not trained on; leave it "
                f"out, or give envs.{env_id}.data to train on"
            )


def fit_supervised(part: SupervisedConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` where the batches of a supervised stage can't be shared by the ranks, or as `fit_training`."""
    fit_training(part, config, name)
    if part.batch_size % config.learner.ranks:
        raise ValueError(
            f"{name}.batch_size={part.batch_size} can't be shared by learner.ranks={config.learner.ranks}; "
            f"take a multiple of the ranks"
        )


def fit_loop(part: LoopConfig, config: RunConfig, name: str) -> None:
    """Raise `ValueError` for budgets larger than episodes and for fewer answers than ranks, or as `fit_training`."""
    fit_training(part, config, name)
    check_trust_region(part, name)
    check_budget_fits(part.thinking.largest_budget if part.thinking.budget else None, config.rollout)
    if part.answers_per_step < config.learner.ranks:
        raise ValueError(
            f"{name}: {part.answers_per_step} answers in a step can't be shared by learner.ranks={config.learner.ranks}"
        )


def check_trust_region(part: LoopConfig, name: str) -> None:
    """Raise `ValueError` if groups may lag by 2 versions or more, and no clip or mask bounds the update on such old data."""
    loss = part.loss
    masks = loss.token_bounds or loss.sequence_bounds
    clips = loss.surrogate != "reinforce" and (part.updates > 1 or loss.against_rollout)
    if part.max_lag < 2 or masks or clips:
        return
    raise ValueError(
        f"{name}.max_lag={part.max_lag} without a trust region: set {name}.loss.token_range=[0.5,5], "
        f"{name}.loss.sequence_range or {name}.loss.old_policy=rollout, or make several updates of a batch "
        f"({name}.updates_per_step, {name}.epochs), or lower it to 1"
    )


def check_colocated(part: object, config: RunConfig, name: str) -> None:
    """Raise `ValueError` where an instance `name` of a stage would generate and learn at once on devices that are shared."""
    if config.placement == "colocated" and isinstance(part, LoopConfig) and part.max_lag:
        raise ValueError(
            f"{name}.max_lag={part.max_lag} with placement=colocated: the engines sleep while the learner works. Set "
            f"{name}.max_lag=0, or placement=dedicated. For fewer phase changes, raise {name}.groups_per_step and "
            f"{name}.updates_per_step"
        )


def check_budget_fits(budget: int | None, rollout: RolloutConfig, sampling: Sampling = PLAIN) -> None:
    """Raise `ValueError` where an episode's tokens, or a turn's by `sampling`, do not hold the largest budget and an answer."""
    if budget is None:
        return
    answer = rollout.thinking.answer_tokens or (rollout.limits.turn_tokens if sampling.max_tokens is None else 1)
    needed = budget + rollout.thinking.grace + answer
    limits = {"rollout.limits.total_tokens": rollout.limits.total_tokens, "sampling.max_tokens": sampling.max_tokens}
    for setting, limit in limits.items():
        if limit is not None and needed > limit:
            raise ValueError(
                f"a thinking budget of {budget} tokens, {rollout.thinking.grace} of grace and {answer} for the answer do not "
                f"fit into {setting}={limit}; raise it, or lower the budget or rollout.thinking.answer_tokens"
            )


def fit_sampled_data(part: SampledDataConfig, config: RunConfig, name: str) -> None:
    fit_supervised(part, config, name)
    check_sampling(name, part.sampling, config.rollout)


def check_sampling(name: str, sampling: Sampling, rollout: RolloutConfig) -> None:
    """Raise `ValueError` where answers of the stage `name` can't be drawn as `sampling` says by engines that guess ahead."""
    guess = rollout.engine.speculation
    if sampling.min_p and guess != "off":
        raise ValueError(
            f"{name}.sampling.min_p={sampling.min_p}: vLLM has none with rollout.engine.speculation={guess}; set that to off, "
            f"or take {name}.sampling.top_p"
        )


def check_thinking(
    model: Path, thinking: ThinkingConfig, *, limited: bool, left_out: bool, declared: DeclaredTurns = AS_IT_IS
) -> None:
    """Raise `ValueError` where the thoughts of a model can't be limited, or not be left out, as they shall be."""
    tokenizer = load_tokenizer(model, declared)
    if limited:
        ThinkingTags(tokenizer, closing=thinking.closing)
    if left_out:
        Renderer(tokenizer, thinking).check_modes()
