"""Which steps of a run can be trained again: those from a checkpoint on, or from the stage's beginning, all recorded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.run.checkpoint import place, steps, verify
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.stages.stage import all_stages

REMEDY = (
    "checkpoints.batches says how many steps after each kept checkpoint are recorded, checkpoints.keep how many checkpoints "
    "are kept, and checkpoint_every of the stage how close they are"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The way to a step: `model` is the checkpoint of step `base`, or for 0 what the stage began with, and `steps` are those
    that are trained again from there, the wanted one last."""

    stage: str
    base: int
    model: Path
    steps: tuple[int, ...]

    @property
    def step(self) -> int:
        """The step that was asked for."""
        return self.steps[-1]

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.stage}/{self.step}"

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"stage": self.stage, "step": self.step, "from": {"step": self.base, "model": str(self.model)}}


def replayable(run: RunDir) -> dict[str, dict[int, Chain]]:
    """Return by instance and step the shortest way to each step that can be trained again.

    Raise `FileNotFoundError` where the folder is that of no run.
    """
    if not (run.root / "manifest.json").is_file():
        raise FileNotFoundError(f"{run.root} is the folder of no run: it has no manifest.json")
    state = run.state()
    return {name: _chains(run, state, name) for name in state.began}


def _chains(run: RunDir, state: RunState, stage: str) -> dict[int, Chain]:
    recorded, found = run.batch_files(stage), {}
    for base, model in _bases(run, state, stage):
        step = base + 1
        while step in recorded:
            found[step] = Chain(stage=stage, base=base, model=model, steps=tuple(range(base + 1, step + 1)))
            step += 1
    return found


def _bases(run: RunDir, state: RunState, stage: str) -> list[tuple[int, Path]]:
    """Return where training may begin again, in order, as far as it is there."""
    begun, folder = run.root / state.began[stage], run.checkpoints(stage)
    first = [(0, begun)] if (begun / "config.json").is_file() else []
    return [*first, *((step, place(folder, step)) for step in steps(folder))]


def chosen(run: RunDir, asked: str) -> Chain:
    """Return the way to a step, `30` or `rl/30`.

    Raise `ValueError`, with the nearest steps that can be replayed and what keeps more, where there is none, and
    `DamagedCheckpointError` where the checkpoint is not as it was saved.
    """
    found, state = replayable(run), run.state()
    stage, number = _asked(asked, found, state)
    chain = found[stage].get(number)
    if chain is None:
        raise ValueError(f"--step {asked}: {_why_not(run, stage, number)}; {_nearest(found[stage], number)}; {REMEDY}")
    if chain.model.is_relative_to(run.root):
        verify(chain.model)
    return chain


def _asked(asked: str, found: dict[str, dict[int, Chain]], state: RunState) -> tuple[str, int]:
    """Return the instance and the step that are asked for. Raise `ValueError` where that is not one of the run."""
    name, _, number = asked.rpartition("/")
    sampling = [one for one in found if _samples(state.stages.get(one))]
    if not number.isdecimal():
        raise ValueError(
            f"--step {asked}: give a step by its number, or with its stage, such as {(sampling or ['rl'])[-1]}/30"
        )
    if name and name not in found:
        raise ValueError(
            f"--step {asked}: the run has no stage {name} that trains; it has {', '.join(found) or 'none'}"
        )
    if name and name not in sampling:
        raise ValueError(
            f"--step {asked}: {name} is no stage that samples, and the batches of others are not recorded; "
            f"{', '.join(sampling) or 'no stage of this run'} can be replayed"
        )
    if name:
        return name, int(number)
    having = [one for one in sampling if int(number) in found[one]] or sampling
    if len(having) != 1:
        raise ValueError(
            f"--step {asked}: {'several stages have it' if having else 'no stage of the run has sampled'}; "
            f"name one as STAGE/{number}, of {', '.join(having) or 'rl or distill'}"
        )
    return having[0], int(number)


def _samples(stage: str | None) -> bool:
    """Return whether a stage samples what it trains on, so that its batches are recorded."""
    known = all_stages().get(stage or "")
    return known is not None and known.settings is not None and issubclass(known.settings, LoopConfig)


def _why_not(run: RunDir, stage: str, number: int) -> str:
    recorded, bases = run.batch_files(stage), [base for base, _ in _bases(run, run.state(), stage) if base < number]
    if number not in recorded:
        return f"the batch of step {number} of {stage} is not recorded, or no longer"
    if not bases:
        return (
            f"neither a checkpoint of {stage} before step {number} nor the model that it began with is there any more"
        )
    lacking = next(step for step in range(bases[-1] + 1, number) if step not in recorded)
    where = f"the checkpoint of step {bases[-1]}" if bases[-1] else "the beginning"
    return f"from {where} on, the batch of step {lacking} is not recorded"


def _nearest(found: dict[int, Chain], number: int) -> str:
    """Return the steps nearest to one that can be replayed, in words."""
    before = max((step for step in found if step < number), default=None)
    after = min((step for step in found if step > number), default=None)
    near = [str(step) for step in (before, after) if step is not None]
    return (
        f"the nearest that can be replayed {'are' if len(near) > 1 else 'is'} {' and '.join(near)}"
        if near
        else ("no step of this stage can be replayed")
    )
