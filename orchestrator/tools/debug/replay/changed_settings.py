"""Settings that a replay is told otherwise than the run was: those that say what becomes of a batch, and no others."""

from collections.abc import Sequence

from temper.orchestrator.config.text import overridden
from temper.orchestrator.pipeline.config import KINDS
from temper.orchestrator.session.recording import TrainedWith, trained_with_from_json

OF_PUSHES = ("transport", "wire_dtype")
OF_THE_STAGE = ("optim", "loss", "steps", "updates_per_step", "epochs")
OF_THE_STATE = ("optim.kind", "learner.bf16", "learner.lora.", "learner.frozen", "learner.train_router")
"""What the state of an optimiser settles."""


def changed(given: TrainedWith, sets: Sequence[str], *, stage: str, kind: str, has_state: bool) -> TrainedWith:
    """Return the settings with `key=value` over them. `stage` is an instance, `kind` its stage; both names are understood.

    `has_state` says whether the optimiser has a state by then. Raise `ValueError` for a setting that no replay is about,
    one that there is none, and a value that is wrong.
    """
    own = [_own_key(one, stage=stage, kind=kind) for one in sets]
    for key, told in zip((one.partition("=")[0] for one in own), sets, strict=True):
        if has_state and key.startswith(OF_THE_STATE):
            raise ValueError(
                f"--set {told}: the optimiser's state in the checkpoint is that of what is trained now, by this optimiser; "
                f"begin another run with this setting"
            )
    try:
        return trained_with_from_json(overridden(given.as_json(), own))
    except ValueError as error:
        raise ValueError(f"--set {' '.join(sets)}: {error}") from error


def _own_key(told: str, *, stage: str, kind: str) -> str:
    """Return a setting by its key in `TrainedWith`. Raise `ValueError` for one that is not there."""
    key, equals, value = told.partition("=")
    if not equals:
        raise ValueError(f"--set {told} is not of the form key=value, for example {stage}.optim.learning_rate=1e-5")
    section, _, rest = key.partition(".")
    if section == "learner":
        if rest.partition(".")[0] in OF_PUSHES:
            raise ValueError(f"--set {told}: {key} says how weights travel to engines, and a replay has none")
        return told
    if section in (stage, kind):
        if rest.partition(".")[0] in OF_THE_STAGE:
            return f"{rest}={value}"
        if f"{kind}.{rest}" in KINDS:
            raise ValueError(
                f"--set {told}: {key} says what is sampled, or when something is saved or measured; the answers of a recorded "
                f"step are there already, and a replay takes {_taken(stage)}"
            )
    known = "" if key in KINDS else ", and no setting has this name"
    raise ValueError(
        f"--set {told}: {key} has no part in the training of a recorded batch of {stage}{known}; {_taken(stage)} have"
    )


def _taken(stage: str) -> str:
    return ", ".join(
        ("learner.*", *(f"{stage}.{one}{'.*' if one in ('optim', 'loss') else ''}" for one in OF_THE_STAGE))
    )
