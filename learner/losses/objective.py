"""The objective of `policy_loss`, as the configuration says it."""

from learner.losses.config import LossConfig
from learner.losses.corrections import Correction
from learner.losses.policy import KlPenalty, Objective
from learner.losses.surrogates import Clip


def objective(config: LossConfig) -> Objective:
    """The values of a configuration, with what the surrogate implies where nothing is set.

    Advantages that are normalised after the divergence was taken from them have paid it before.
    """
    low, high = config.clip
    coefficient = 0.0 if config.normalises_divergence else config.kl_coefficient
    return Objective(
        surrogate=config.surrogate,
        clip=Clip(low=low, high=high, dual=config.dual),
        correction=Correction(
            cap=config.cap,
            floor=config.importance_floor,
            token_range=config.token_bounds,
            sequence_range=_bounds(config.sequence_range),
            error_guard=config.error_guard,
            negative_guard=config.negative_guard,
        ),
        against_rollout=config.against_rollout,
        kl=KlPenalty(estimate=config.kl, coefficient=coefficient, in_reward=config.kl_in == "reward"),
        entropy_bonus=config.entropy_bonus,
    )


def _bounds(values: list[float]) -> tuple[float, float] | None:
    return (values[0], values[1]) if values else None
