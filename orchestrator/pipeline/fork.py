"""`fork`: a new run from a checkpoint of another run, with other settings."""

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from temper.envs.core.setting import Kind
from temper.learner.training_state import CheckpointFacts
from temper.orchestrator.pipeline.config import Config, save_config
from temper.orchestrator.pipeline.continuation import Changes, changes, fingerprint_now, samples_anew, select_recorded
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.orchestrator.pipeline.rate_change import rate_change
from temper.orchestrator.run.checkpoint import (
    MANIFEST,
    begin,
    commit,
    copy_checkpoint,
    place,
    size_of,
    step_of,
    steps,
    verify,
)
from temper.orchestrator.run.event_log import copy_event_log
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import MetricsLog, read_metrics
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import Role, StageInstance

FORKED = "forked"
OF_THE_MODEL = ("model.",)
"""Settings fixed by the checkpoint's model."""
OF_THE_OPTIMISER = ("optim.kind", "learner.lora.", "learner.frozen", "learner.train_router", "learner.bf16")
"""Settings fixed by the optimiser's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A checked fork that does not exist yet."""

    config: Config
    instance: StageInstance
    checkpoint: Path
    source: RunDir
    target: RunDir
    found: dict[Kind, Changes]
    """Differences from the source, by kind."""

    @property
    def step(self) -> int:
        return step_of(self.checkpoint)

    @property
    def goes_on(self) -> bool:
        return self.config.steps(self.instance) > self.step

    @property
    def keeps_answers(self) -> bool:
        return not samples_anew(self.instance.name, self.found)

    def state(self, model: str) -> RunState:
        """Return the first state of the new run, whose newest model has this path."""
        given = self.source.state()
        before, name = self.before(), self.instance.name
        done = {one: given.done[one] for one in before}
        manifest = hashlib.sha256((self.checkpoint / MANIFEST).read_bytes()).hexdigest()
        return RunState(
            done=done if self.goes_on else done | {name: self.step},
            began={one: trained_instances for one, trained_instances in given.began.items() if one in (*before, name)},
            stages={one: kind for one, kind in given.stages.items() if one in (*before, name)},
            model=model,
            label=name,
            version=given.version,
            commits=given.commits,
            fingerprint=fingerprint_now(self.config, self.source),
            origin={
                "run": str(self.source.root),
                "from": f"{name}/{self.step}",
                "manifest": f"SHA-256 {manifest}",
            },
        )

    def before(self) -> list[str]:
        order = list(self.source.state().done)
        return order[: order.index(self.instance.name)] if self.instance.name in order else order


def fork(source: Path, at: str, overrides: list[str]) -> Config:
    """Create a run from checkpoint `at`, `rl/150` or `rl` for the newest, of the run in `source`. Return its configuration.

    It has the source's settings with overrides, which include a `name`. The checkpoint's stage continues if `steps` is
    larger, else the next stage starts from this model. Answers are sampled again if their settings changed. The event log is
    copied up to the checkpoint. Raise as `checked_fork`.
    """
    made = checked_fork(source, at, overrides)
    _make(made)
    state = made.target.state()
    log = MetricsLog(made.target.metrics)
    what = state.origin | select_recorded(made.found, made.config, made.source.state())
    rate = rate_change(made.config, made.found[Kind.SCHEDULE], made.checkpoint, read_metrics(made.source.metrics))
    log.event(made.instance.name, made.step, FORKED, what | ({} if rate is None else rate.event))
    return made.config


def checked_fork(source: Path, at: str, overrides: list[str]) -> Fork:
    """Return the run that `fork` would create, without writing.

    Raise `FileNotFoundError`, `ValueError`, and `DamagedCheckpointError` for a damaged checkpoint.
    """
    if not (source / "config.yaml").is_file() or not (source / "manifest.json").is_file():
        raise FileNotFoundError(f"{source} is not the folder of a run: it has no config.yaml or manifest.json")
    if not any(override.startswith("name=") for override in overrides):
        raise ValueError("a fork needs a new name; add name=")
    beside = [] if any(one.startswith("runs_dir=") for one in overrides) else [f"runs_dir={source.resolve().parent}"]
    config = load_resolved_config(source / "config.yaml", [*beside, *overrides])
    given, target = RunDir(source.resolve()), RunDir(Path(config.runs_dir).resolve() / config.name)
    if target.root.exists():
        raise ValueError(f"{target.root} exists already; use another name=")
    checkpoint = _checkpoint(given, at)
    instance = _instance(config, checkpoint, given.state())
    verify(checkpoint)
    found = changes(config, given.state().fingerprint, fingerprint_now(config, given))
    _check_changes(config, instance, step_of(checkpoint), found)
    return Fork(config=config, instance=instance, checkpoint=checkpoint, source=given, target=target, found=found)


def _checkpoint(given: RunDir, at: str) -> Path:
    name, _, step = at.partition("/")
    kept = {one: steps(given.checkpoints(one)) for one in given.state().began}
    found = kept.get(name, [])
    if found and not step:
        return place(given.checkpoints(name), found[-1])
    if not step.isdecimal() or int(step) not in found:
        listed = ", ".join(f"{one}/{number}" for one, numbers in kept.items() for number in numbers)
        raise ValueError(f"{given.root} has no checkpoint {at}; it has {listed or 'no trained one'}")
    return place(given.checkpoints(name), int(step))


def _instance(config: Config, checkpoint: Path, state: RunState) -> StageInstance:
    name, step = checkpoint.parent.name, step_of(checkpoint)
    found = next((one for one in config.instances if one.name == name), None)
    if found is None or found.stage.name != state.stages[name]:
        raise ValueError(
            f"stages has no {state.stages[name]} named {name}, the stage of the checkpoint; keep it in the list, and set "
            f"{name}.steps={step} to end it there"
        )
    if config.steps(found) < step:
        raise ValueError(
            f"{name}.steps={config.steps(found)} is less than the {step} steps of the checkpoint; set {name}.steps={step} to "
            f"begin the next stage, or more to continue this one"
        )
    return found


def _check_changes(config: Config, instance: StageInstance, step: int, found: dict[Kind, Changes]) -> None:
    goes_on = config.steps(instance) > step
    optimiser = tuple(f"{instance.name}.{name}" if name.startswith("optim") else name for name in OF_THE_OPTIMISER)
    for key, (before, now) in found[Kind.IMMUTABLE].items():
        if key.startswith(OF_THE_MODEL):
            raise ValueError(f"{key}: {before} -> {now} does not fit the checkpoint's model; restore the old value")
        if goes_on and key.startswith(optimiser):
            raise ValueError(
                f"{key}: {before} -> {now} does not fit the checkpoint's optimiser state; restore the old value, or set "
                f"{instance.name}.steps={step} to begin the next stage"
            )


def _make(made: Fork) -> None:
    from temper.orchestrator.run.loop_state import STATE_FILE, read_state  # imports torch, which a dry run does without

    given, target, name = made.source, made.target, made.instance.name
    state, before = given.state(), made.before()
    target.open()
    try:
        copy = _copied(made.checkpoint, given, target, keeps_answers=made.keeps_answers)
        rows = read_state(made.checkpoint).event_rows if (made.checkpoint / STATE_FILE).exists() else 0
        copy_event_log(given.event_log, target.event_log, rows=dict.fromkeys(before) | {name: rows})
        evaluations = (one for one in before if all_stages()[state.stages[one]].role is Role.EVALUATE)
        for label in (one.removeprefix("eval-") for one in evaluations):
            shutil.copy2(given.evals / f"{label}.json", target.evals / f"{label}.json")
        if made.goes_on and made.keeps_answers and given.answers_file(name).is_file():
            shutil.copy2(given.answers_file(name), target.answers_file(name))
        save_config(made.config, target.config)
        target.store(made.state(str(copy.relative_to(target.root))))
    except BaseException:
        target.close()
        shutil.rmtree(target.root)
        raise
    target.close()


def _copied(checkpoint: Path, given: RunDir, target: RunDir, *, keeps_answers: bool) -> Path:
    """Copy a checkpoint and its stage's first model, with the new path of the latter.

    Without `keeps_answers` its waiting groups are sampled again.
    """
    from temper.orchestrator.run.loop_state import EPISODES_FILE, GROUPS_FILE  # as above

    facts = CheckpointFacts.read(checkpoint)
    start = (checkpoint.parent / facts.start).resolve()
    if start.is_relative_to(given.root):
        moved = target.root / start.relative_to(given.root)
        if start.is_dir() and not moved.exists():
            copy_checkpoint(start, moved)
            if (start / MANIFEST).exists():
                shutil.copy2(start / MANIFEST, moved / MANIFEST)
        start = moved
    stage_dir = target.checkpoints(checkpoint.parent.name)
    directory = begin(stage_dir, step_of(checkpoint), needed_bytes=size_of(checkpoint))
    copy_checkpoint(checkpoint, directory)
    for answers in (directory / GROUPS_FILE, directory / EPISODES_FILE):
        if answers.exists() and not keeps_answers:
            answers.write_text("", encoding="utf-8")
    replace(facts, start=os.path.relpath(start, stage_dir)).write(directory)
    return commit(directory)
