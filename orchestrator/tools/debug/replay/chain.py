"""The steps of a run that can be trained again: every step since a checkpoint, or since the stage's beginning, is recorded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.run.checkpoint import place, steps
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.registry import all_stages

REMEDY = (
    "checkpoints.batches sets how many steps after each kept checkpoint are recorded, checkpoints.keep how many checkpoints "
    "are kept, and checkpoint_every of the stage how close they are"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The steps that lead to a step: `steps` are trained again from `model`, the requested one last.

    `model` is the checkpoint of step `base`, or for 0 the initial model of the stage.
    """

    stage: str
    base: int
    model: Path
    steps: tuple[int, ...]

    @property
    def step(self) -> int:
        """The requested step."""
        return self.steps[-1]

    @property
    def label(self) -> str:
        """The step in the form of the command line."""
        return f"{self.stage}/{self.step}"

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"stage": self.stage, "step": self.step, "from": {"step": self.base, "model": str(self.model)}}


def replayable(run: RunDir) -> dict[str, dict[int, Chain]]:
    """Return the shortest chain to each step that can be trained again, by instance and step.

    Raise `FileNotFoundError` if the folder has no run.
    """
    if not (run.root / "manifest.json").is_file():
        raise FileNotFoundError(f"{run.root} has no run: manifest.json is missing")
    return {name: _chains(run, name) for name in run.state().began}


def _chains(run: RunDir, stage: str) -> dict[int, Chain]:
    recorded, found = run.batch_files(stage), {}
    for base, model in _bases(run, stage):
        step = base + 1
        while step in recorded:
            found[step] = Chain(stage=stage, base=base, model=model, steps=tuple(range(base + 1, step + 1)))
            step += 1
    return found


def _bases(run: RunDir, stage: str) -> list[tuple[int, Path]]:
    """Return the steps, with their models, after which training can begin again, in order."""
    begun, folder = run.root / run.state().began[stage], run.checkpoints(stage)
    first = [(0, begun)] if (begun / "config.json").is_file() else []
    return [*first, *((step, place(folder, step)) for step in steps(folder))]


def choose_chain(run: RunDir, asked: str) -> Chain:
    """Return the chain to a step, `30` or `rl/30`.

    Raise `ValueError` if there is none, with the nearest steps and the settings that record more. Raise
    `DamagedCheckpointError` if the checkpoint is damaged.
    """
    found = replayable(run)
    stage, number = _asked(asked, found, run.state().stages)
    chain = found[stage].get(number)
    if chain is None:
        raise ValueError(f"--step {asked}: {_why_not(run, stage, number)}; {_nearest(found[stage], number)}; {REMEDY}")
    run.verify_model(chain.model)
    return chain


def _asked(asked: str, found: dict[str, dict[int, Chain]], kinds: dict[str, str]) -> tuple[str, int]:
    """Return the requested instance and step. Raise `ValueError` if the run does not have them."""
    name, _, number = asked.rpartition("/")
    sampling = [one for one in found if _samples(kinds.get(one, ""))]
    if not number.isdecimal():
        example = f"{(sampling or ['rl'])[-1]}/30"
        raise ValueError(f"--step {asked}: use a step number, or STAGE/N such as {example}")
    if name and name not in found:
        raise ValueError(f"--step {asked}: the run has no training stage {name}, only {', '.join(found) or 'none'}")
    if name and name not in sampling:
        raise ValueError(
            f"--step {asked}: {name} does not sample, and only batches of sampling stages are recorded; "
            f"{', '.join(sampling) or 'no stage of this run'} can be replayed"
        )
    having = [name] if name else [one for one in sampling if int(number) in found[one]] or sampling
    if len(having) != 1:
        raise ValueError(
            f"--step {asked}: {'several stages have it' if having else 'no stage of the run has sampled'}. "
            f"Use STAGE/{number} with {', '.join(having) or 'rl or distill'}"
        )
    return having[0], int(number)


def _samples(stage: str) -> bool:
    """Return whether a stage samples the answers that it trains on, so that its batches are recorded."""
    known = all_stages().get(stage)
    return known is not None and known.settings is not None and issubclass(known.settings, LoopConfig)


def _why_not(run: RunDir, stage: str, number: int) -> str:
    recorded, bases = run.batch_files(stage), [base for base, _ in _bases(run, stage) if base < number]
    if number not in recorded:
        return f"the batch of step {number} of {stage} is not recorded, or no longer"
    if not bases:
        return f"{stage} has neither a checkpoint before step {number} nor its initial model"
    lacking = next(step for step in range(bases[-1] + 1, number) if step not in recorded)
    where = f"the checkpoint of step {bases[-1]}" if bases[-1] else "the beginning"
    return f"the batch of step {lacking}, after {where}, is not recorded"


def _nearest(found: dict[int, Chain], number: int) -> str:
    """Return the nearest steps that can be replayed, as text."""
    if not found:
        return "no step of this stage can be replayed"
    near = [*sorted(step for step in found if step < number)[-1:], *sorted(step for step in found if step > number)[:1]]
    return f"the nearest that can be replayed {'are' if len(near) > 1 else 'is'} {' and '.join(map(str, near))}"
