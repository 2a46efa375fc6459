"""`rl`: reinforcement learning on the mixture of environments. The loop itself is in `orchestrator/loop/loop.py`."""

from functools import partial
from pathlib import Path

from temper.learner.losses.advantages import has_signal
from temper.orchestrator.config.fitting import fit_loop
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.buffer import Buffer
from temper.orchestrator.loop.shaping import earned_rewards, require_buffer_fits
from temper.orchestrator.loop.step_times import Phase
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.stage import Role, Stage, StageInstance
from temper.orchestrator.stages.stage_figures import Curve, StageFigures
from temper.rollout.trajectory import Group


async def run_rl(run: Run, config: RlConfig, instance: StageInstance) -> Path:
    """Train for `config.steps`; returns the checkpoint of the last step."""
    buffer = partial(
        Buffer,
        groups_per_step=config.groups_per_step,
        max_lag=config.max_lag,
        max_drops=config.max_drops,
        slots=config.slots,
        fewest=config.fewest_answers,
        overridden=config.loss.overrides,
        sampling=config.sampling,
        signal=partial(teaches, kind=config.loss.advantage),
    )
    return await LoopStage(run, config, instance, buffer, shaping=config.shaping).run()


def teaches(group: Group, *, kind: str) -> bool:
    """Return whether the rewards of a group, as its answers earned them before shaping, teach anything by this advantage.

    Groups are filtered before the penalty for length: Yu et al., "DAPO", section 3.2, 2025.
    """
    return has_signal(earned_rewards(group), kind=kind)


def _fits(config: RlConfig, run: RunConfig, name: str) -> None:
    require_buffer_fits(config.shaping, turn_tokens=run.rollout.limits.turn_tokens)
    fit_loop(config, run, name)


STAGE = Stage(
    name="rl",
    role=Role.TRAIN,
    settings=RlConfig,
    run=run_rl,
    first_ticket=0,
    plays=lambda config: True,
    limits_thoughts=lambda config: config.thinking.budget > 0,
    leaves_thoughts_out=lambda config: config.thinking.no_thought > 0,
    fits=_fits,
    check=lambda config, start: start.loop_tasks(config),
    figures=StageFigures(
        rewards="Mean reward of all answers, those of groups without signal included; the bold line is a running mean.",
        curves=(
            Curve(
                title="Throughput in RL",
                note="Tokens sampled per second of the whole step: waiting, learning, weights and checkpoints included.",
                metrics={"rollout/tokens_per_s": "tokens/s"},
            ),
            Curve(
                title="Trainer against engine",
                note="Mean absolute difference of the log-probabilities of sampled tokens: staleness and numerics together.",
                metrics={"train/logprob_gap": "|log pi - log mu|"},
            ),
            Curve(
                title="Staleness",
                note="How many weight versions the groups of a step were behind their admission, and their tokens behind what "
                "sampled them.",
                metrics={"train/lag_max": "largest", "train/lag_mean": "mean", "train/lag_tokens": "mean of tokens"},
                smooth=False,
            ),
            Curve(
                title="Entropy",
                note="Mean surprise of the sampled tokens, in nats.",
                metrics={"train/entropy": "entropy"},
            ),
            Curve(
                title="Seconds of a step",
                note="Waiting for finished groups, learning, laying weights out, waiting for an evaluation to end, engines "
                "loading weights, and checkpoints.",
                metrics={
                    f"time/{phase.value}_s": phase.value
                    for phase in (Phase.WAIT, Phase.LEARN, Phase.PUBLISH, Phase.EVAL, Phase.LOAD, Phase.SAVE)
                },
            ),
        ),
    ),
)
