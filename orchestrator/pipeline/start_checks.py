"""The checks at the start of a run, before it starts an engine or writes a file. `temper doctor` makes them too.

A check is a function of `Start` that yields findings. A problem that prevents the run is raised.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from temper.envs.binding import BoundEnv
from temper.envs.core.bounds import require_known
from temper.envs.core.definition import USUAL_CHANCE
from temper.envs.core.errors import GraderError
from temper.envs.core.task import Task
from temper.envs.data.repeats import MOST_NAMED
from temper.envs.data.split import SplitTask
from temper.envs.own_reward import judge
from temper.envs.reward_audit import (
    FEWEST,
    ONE_ANSWER,
    CaseCheck,
    audit,
    find_own_reference,
    find_references,
    sample_tasks,
)
from temper.envs.source import data_of, open_source, read_first_rows
from temper.envs.transcript import score_turns
from temper.learner.config import LearnerConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.models.shape import longest_sequence
from temper.learner.training_state import model_bytes, state_bytes
from temper.orchestrator.config.fitting import check_thinking
from temper.orchestrator.data.row_intake import counts_text
from temper.orchestrator.loop.deadline import THREADS
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.estimate.model import read_config
from temper.orchestrator.pipeline.finding import Finding, Level, ok, warning
from temper.orchestrator.pipeline.settings_checks import check_settings, check_stages
from temper.orchestrator.stages.stage import Role, StageInstance, StartCheck
from temper.orchestrator.tracking.sinks.config import require_usable
from temper.rewards.score import JUDGE, LENGTH
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.round_trip import Needs, check_round_trip
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import require_complete

SURELY_SHORT = 2
"""A prompt is not tokenised if this many times its characters are fewer than the limit's tokens."""
AUDIT_S = 10.0
"""Seconds for the audit of an environment's reward. They begin after its first answer, which may start child processes."""
AUDIT_WAIT_S = 60.0
"""Seconds until a call of a reward counts as hung."""
DIFFERENT_ROWS = "keep one row of each question, with its right answer"


@dataclass(frozen=True, kw_only=True)
class Start:
    """A configuration, the stages ahead, and the folder of their first model; None for a fresh one."""

    config: Config
    ahead: list[StageInstance]
    model: Path | None

    @property
    def plays(self) -> bool:
        return any(map(self.config.plays, self.ahead))

    @cached_property
    def parameters(self) -> int:
        return self.config.model.fresh.parameters if self.model is None else require_complete(self.model)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return byte_tokenizer() if self.model is None else load_tokenizer(self.model, self.config.model.declared())

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.tokenizer, self.config.rollout.thinking)

    @cached_property
    def longest(self) -> int | None:
        return self.config.model.fresh.max_positions if self.model is None else longest_sequence(self.model)


def check_before(config: Config, ahead: list[StageInstance], root: Path, reached: str | None = None) -> list[Finding]:
    """Make all checks and return their findings.

    `reached` is the newest whole model of the run in the folder `root`. Raise `FileNotFoundError`, `ValueError`, and `OSError`
    for a full disk.
    """
    check_stages(config, ahead)
    require_usable(config.tracking.also, config.tracking.wandb)
    if all(one.stage.role is Role.REPORT for one in ahead):
        return []
    begins = ahead[0].stage.role is Role.BEGIN or reached is None
    source = None if config.model.source is None or not begins else config.model.source.folder
    start = Start(config=config, ahead=ahead, model=source if begins or reached is None else root / reached)
    assert start.parameters
    if start.model is not None:
        read_config(start.model)
        check_model(start.model, config)
    if start.plays:
        check_positions(start)
        check_rewards(start)
        for judge_model in config.judges.values():
            require_complete(judge_model.folder)
            load_tokenizer(judge_model.folder)
    found = [*check_settings(config, ahead), *check_format(start), *check_rows(start)]
    found += [*check_prompts(start), *check_data(start), *audit_rewards(start)]
    if any(one.stage.trains for one in ahead):
        size = checkpoint_size(config.learner, start.parameters, ema=config.keeps_ema)
        require_disk(root, size, start.parameters)
    return found


def check_model(model: Path, config: Config) -> None:
    """Raise `FileNotFoundError` or `ValueError` if the model's thinking does not support the configuration."""
    stages = [(one.stage, config.settings(one)) for one in config.instances]
    check_thinking(
        model,
        config.rollout.thinking,
        limited=any(stage.limits_thinking(settings) for stage, settings in stages),
        left_out=any(not env.thinking for env in config.envs.values())
        or any(stage.samples_without_thinking(settings) for stage, settings in stages),
        declared=config.model.declared(),
    )


def check_positions(start: Start) -> None:
    """Raise `ValueError` if an engine's sequences have more tokens than the model has positions.

    vLLM accepts more by its setting `hf_overrides` and by its environment variable.
    """
    engine, longest = start.config.rollout.engine, start.longest
    allowed = "hf_overrides" in engine.extra or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    if longest is not None and engine.max_model_len > longest and not allowed:
        more = ", or raise model.fresh.max_positions" if start.model is None else ""
        raise ValueError(
            f"rollout.engine.max_model_len={engine.max_model_len}: the model has {longest} positions; set "
            f"rollout.engine.max_model_len and rollout.limits.total_tokens to at most that{more}"
        )


def check_format(start: Start) -> Iterator[Finding]:
    """Check whether the model's format supports the tools, system texts and reasoning of the environments.

    Raise `ValueError` if a reference dialogue of their kind changes in a round trip.
    """
    if not start.plays:
        return
    config = start.config
    stages = [(one.stage, settings) for one in config.instances if (settings := config.settings(one)) is not None]
    left_out = any(stage.samples_without_thinking(settings) for stage, settings in stages)
    needs = needs_of(config.environments, seed=config.seed, left_out=left_out)
    for note in check_round_trip(start.tokenizer, needs):
        yield warning(note, "set another template with model.chat_template")


def needs_of(envs: Mapping[str, BoundEnv], *, seed: int, left_out: bool) -> Needs:
    tasks = [task for env in envs.values() for task in _some_tasks(env, seed)]
    return Needs(
        tools=any(task.tools for task in tasks) or any(env.ref.settings.tools for env in envs.values()),
        system=any(message.get("role") == "system" for task in tasks for message in task.messages),
        thinking=any(env.config.thinking for env in envs.values()),
        no_thinking=left_out or any(not env.config.thinking for env in envs.values()),
    )


def _some_tasks(env: BoundEnv, seed: int) -> Iterable[Task]:
    """Return tasks with all kinds of tools and system texts: of all rows, or of the first streamed block."""
    data = data_of(env)
    if not data:
        return [] if env.definition.generate is None else [open_source(env, split="train", seed=seed).task(0)]
    return [each.task for one in data for each in read_first_rows(env, one).tasks]


def check_rewards(start: Start) -> None:
    """Raise `ValueError` if a user's reward fails on an empty answer to the first task, or lacks a part that has a weight."""
    for name, env in start.config.environments.items():
        if env.config.reward is None or not (tasks := list(_some_tasks(env, start.config.seed))):
            continue
        try:
            parts = judge(tasks[0], "").parts
        except GraderError as error:
            raise ValueError(f"envs.{name}.reward fails on an empty answer: {error}") from error
        judged = [JUDGE] if env.config.judge is not None else []
        require_known(env.config.weights, (*parts, LENGTH, *judged), f"envs.{name}.weights")


def audit_rewards(start: Start) -> Iterator[Finding]:
    """Warn of rewards that pay for answers without knowledge of the task. Measure the best answer to all tasks.

    It audits users' functions, and environments of one turn that declare few different answers, but asks no judge.
    """
    for name, env in start.config.environments.items() if start.plays else ():
        few = env.definition.chance is not None and env.definition.max_turns == 1
        if (env.config.reward is None and not few) or not (tasks := sample_tasks(env, FEWEST, seed=start.config.seed)):
            continue
        auditing = THREADS.submit(_audit_env, env, tasks)
        try:
            findings = auditing.result(AUDIT_WAIT_S)
        except TimeoutError:
            text = f"{name}: its reward is not audited, because the scripts take more than {AUDIT_S:g} s"
            yield warning(text, f"run `temper env check FILE --env {name}`")
            continue
        yield from _to_findings(env, findings)


def _audit_env(env: BoundEnv, tasks: list[Task]) -> list[CaseCheck]:
    """Return the checks of the audit. Raise `TimeoutError` if they take longer than `AUDIT_S`."""
    score_turns(tasks[0], ["0"])
    reference = None if env.config.reward is None else find_own_reference(tasks)
    references = find_references(tasks, reference or env.definition.reference)
    return audit(env.definition, tasks, references, until=time.monotonic() + AUDIT_S)


def _to_findings(env: BoundEnv, checks: list[CaseCheck]) -> Iterator[Finding]:
    for check in checks:
        if check.against:
            text = f"envs.{env.name}: the reward fails the check `{check.name}`: {check.against[0]}"
            yield warning(text, "correct the reward, unless it is meant to pay for this")
        if check.name.startswith(ONE_ANSWER):
            answer, earned = check.best
            text = f"{env.name}: one answer to all tasks, {answer}, earns {earned:.2f}; compare env/{env.name}/reward with it"
            level = Level.WARNING if earned > USUAL_CHANCE and not check.against else Level.OK
            measured = {f"env/{env.name}/best_constant": earned}
            yield Finding(level=level, what=text, remedy="add tasks with more different answers", metrics=measured)


def check_prompts(start: Start) -> Iterator[Finding]:
    """Warn of prompts that leave no token for an answer. Raise `ValueError` if the data's `on_error` is raise."""
    if not start.plays:
        return
    total = start.config.rollout.limits.total_tokens
    for name, env in start.config.environments.items():
        for data in data_of(env):
            rows = read_first_rows(env, data).tasks
            found = overlong(rows, start.renderer, total_tokens=total)
            if not found:
                yield ok(
                    f"{data.name}: the prompts of {len(rows)} rows leave room in rollout.limits.total_tokens={total}"
                )
                continue
            named = ", ".join(f"row {row} has {length}" for row, length in found[:MOST_NAMED])
            text = (
                f"{data.name}: the prompts of {len(found)} of {len(rows)} rows leave no token for an answer in "
                f"rollout.limits.total_tokens={total}: {named}"
            )
            if (data.on_error or env.config.on_error) == "raise":
                raise ValueError(f"{text}; raise the limit, or let such episodes fail with envs.{name}.on_error=skip")
            yield warning(f"{text}; their episodes fail as prompt_too_long", "raise the limit, or remove such rows")


def check_rows(start: Start) -> Iterator[Finding]:
    """Name the repeated rows of environments, questions whose rows have different answers, and fields that nothing reads."""
    for env in start.config.environments.values() if start.plays else ():
        for data in data_of(env):
            rows = read_first_rows(env, data)
            if rows.remarks:
                yield warning(f"{data.name}: {'; '.join(rows.remarks)}", DIFFERENT_ROWS)
            if rows.unread and env.config.preset is None:
                text = f"{data.name}: of {len(rows.tasks)} rows, {counts_text(rows.unread)}"
                yield warning(text, "set `columns` to use a field under another name")


def overlong(rows: Iterable[SplitTask], renderer: Renderer, *, total_tokens: int) -> list[tuple[int, int]]:
    """Return numbers of rows with prompts as long as a whole episode, and their lengths in tokens, the longest first."""
    lengths = ((one.row, len(renderer.prompt_ids(one.task))) for one in rows if not _short(one.task, total_tokens))
    return sorted((pair for pair in lengths if pair[1] >= total_tokens), key=lambda pair: -pair[1])


def _short(task: Task, total_tokens: int) -> bool:
    return SURELY_SHORT * len(json.dumps([task.messages, task.tools])) < total_tokens


def check_data(start: Start) -> Iterator[Finding]:
    for one in start.ahead:
        given = StartCheck(config=start.config, name=one.name, tokenizer=start.tokenizer, longest=start.longest)
        one.stage.check(start.config.settings(one), given)
        yield ok(f"{one.name} has its data")


def checkpoint_size(learner: LearnerConfig, parameters: int, *, ema: bool = False) -> int:
    """Return the bytes of a checkpoint. With adapters or a partly trained model, only the model counts."""
    trained = 0 if learner.lora.rank or learner.frozen else parameters
    state = state_bytes(trained, bf16=learner.bf16, ema=ema)
    return model_bytes(parameters, bf16=learner.bf16) + state


def require_disk(folder: Path, needed: int, parameters: int) -> None:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise OSError(f"{place} is no folder that can be written; set runs_dir= to one")
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            f"{place} has {free:,} bytes free and a checkpoint of {parameters:,} parameters needs {needed:,} or more; "
            f"free some, or set runs_dir= to a larger disk"
        )
