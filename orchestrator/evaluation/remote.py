"""Evaluation of a model on an OpenAI-compatible server, without engine, cluster and run, into the same files."""

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.core.errors import EnvError, describe_error
from temper.envs.core.task import Task
from temper.envs.sandbox.sandbox import report_sandbox, shared_sandbox
from temper.envs.sandbox.seal_probe import MIN_LEVEL_VARIABLE
from temper.envs.source import content_key
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.evaluation.budget_curve import mean
from temper.orchestrator.evaluation.evaluator import heldout_tasks
from temper.orchestrator.evaluation.scores import asked_of_envs, env_result, of_env, result_json
from temper.orchestrator.loop.deadline import Deadline, in_thread, together, within
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.run.folder import RunDir, append_line, parse_lines, write_json
from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown
from temper.rollout.codec import from_data, to_data
from temper.rollout.remote.client import ChatClient, ChatServer
from temper.rollout.remote.episodes import RemoteEpisodes
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.trajectory_json import write_groups

FORMAT = 2
"""Version of the file of answers. A change that older programs would misread adds one."""


def _parse_row(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"no row of answers: {line[:80]!r}; remove the file to sample all answers again") from error


class KeptAnswers:
    """A file of answered groups, with which an interrupted evaluation resumes. It is removed after the result is written.

    {"asked": {"url": ..., "model": ..., "samples": ..., "envs.math.thinking": ..., ...}}      the settings of the answers
    {"content": "5f0c...", "group": {...}}                                                     a group, `to_data`
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Read the answers in the file. Raise `ValueError` for an unreadable file or other settings than `asked`."""
        self._path = path
        rows = parse_lines(path.read_text(encoding="utf-8"), path, _parse_row) if path.exists() else []
        if rows:
            os.truncate(path, sum(len(line.encode()) + 1 for line, _ in rows))  # without a torn last line
            self._require_same(rows[0][1]["asked"], asked)
        else:
            path.unlink(missing_ok=True)
            append_line(path, json.dumps({"asked": asked}))
        self._groups = {row["group"]["ticket"]["number"]: row for _, row in rows[1:]}

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, ticket: Ticket) -> Group | None:
        """Return the answers to a ticket's task, or None."""
        row = self._groups.get(ticket.number)
        if row is None or row["content"] != content_key(ticket.task):
            return None
        try:
            return from_data(Group, row["group"]).with_task(ticket.task)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{self._path}: the answers of ticket {ticket.number} are damaged or of another version ({error}); remove the "
                f"file to sample all answers again"
            ) from error

    def keep(self, group: Group) -> None:
        """Keep a group without failed answers. Other groups are requested again."""
        if not group.failed:
            content = content_key(group.ticket.task)
            append_line(self._path, json.dumps({"content": content, "group": to_data(group.without_data)}))

    def remove(self) -> None:
        self._path.unlink()

    def _require_same(self, before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        other = [f"{name} {before.get(name)} (now {asked[name]})" for name in asked if before.get(name) != asked[name]]
        if other:
            raise ValueError(
                f"{self._path} has answers to another evaluation, of {', '.join(other)}; use another --name, or remove it"
            )


NO_VERSION = WeightVersion(step=0)
"""The version of a server's weights, which is unknown."""


async def evaluate_server(
    config: RunConfig, settings: EvalConfig, server: ChatServer, *, model: str | None, label: str, quiet: bool = False
) -> Path:
    """Send held-out tasks to a model of a server. Write trajectories and `eval/<label>.json`, and return the latter.

    With `quiet`, show no progress. Without `model` the server must have exactly one. Raise `ValueError` for an unknown model
    or a failing server, for an existing result or answers with other settings, and for measures that only our engines have.
    """
    if settings.has_curve:
        raise ValueError(
            "--url with eval.budgets, budget_shares, no_thinking or low_effort: they need a local engine; remove them"
        )
    for name, env in config.envs.items():
        if env.agent is not None:
            raise ValueError(f"--url with envs.{name}.agent: an agent needs a local engine; remove --url or the agent")
        if env.judge is not None and env.judge.compare:
            raise ValueError(f"--url with envs.{name}.judge.compare: only a local engine's answers are compared")
        if env.judge is not None and env.judge.is_served_by_run:
            raise ValueError(f"--url with envs.{name}.judge.model: only a run serves its judge; set judge.url too")
    folder = RunDir(Path(config.runs_dir).resolve() / config.name)
    path = folder.evals / f"{label}.json"
    if path.exists():
        raise ValueError(f"{path} exists already; use another --name")
    began = time.monotonic()
    tasks = await in_thread(heldout_tasks, config, settings.tasks)
    os.environ[MIN_LEVEL_VARIABLE] = str(config.sandbox.min_level)
    async with ChatClient(server) as client:
        name = await _model(client, model)
        folder.open()
        try:
            with Progress(config.name, stream=io.StringIO() if quiet else None) as progress:
                kept = KeptAnswers(folder.evals / f"{label}.answers.jsonl", _asked(config, settings, server, name))
                goes_on = f"{len(kept)} of them answered before" if kept else f"--name {config.name} resumes it"
                progress.note(f"{len(tasks)} tasks for {name} at {server.url}, into {folder.root}; {goes_on}")
                await _show_isolation(config, progress)
                episodes = RemoteEpisodes(
                    client, name, limits=config.rollout.limits, seed=config.seed, retries=config.rollout.retries
                )
                groups = await _answers(episodes, tasks, settings, progress, kept, label=label)
            envs = {env: _env_result(of_env(groups, env), asked=settings.tasks) for env in sorted(config.envs)}
            result = result_json(
                label=label,
                order=0,
                model=name,
                version=NO_VERSION,
                samples=settings.answers_per_task,
                sampling=settings.sampling,
                seconds=time.monotonic() - began,
                asked={"rollout.limits.turns": config.rollout.limits.turns} | asked_of_envs(config),
                groups=groups,
                envs=envs,
            )
            await in_thread(partial(write_groups, folder.trajectories / f"eval-{label}.jsonl", groups))
            write_json(path, result | {"url": server.url})
            kept.remove()
        finally:
            folder.close()
    return path


def _asked(config: RunConfig, settings: EvalConfig, server: ChatServer, model: str) -> dict[str, Any]:
    """Return the settings that answers and their rewards depend on, besides their tasks, as plain JSON data."""
    asked = {
        "format": FORMAT,
        "url": server.url,
        "model": model,
        "samples": settings.answers_per_task,
        "sampling": asdict(settings.sampling),
        "seed": config.seed,
        "turns": config.rollout.limits.turns,
    }
    for name, env in sorted(config.environments.items()):
        played = asdict(env.ref.settings) | {"thinking": env.config.thinking, "options": env.ref.options}
        del played["threads"]
        asked |= {f"envs.{name}.{setting}": value for setting, value in played.items()}
    plain: dict[str, Any] = json.loads(json.dumps(asked))
    return plain


async def _model(client: ChatClient, wanted: str | None) -> str:
    """Return the name of the requested model. Raise `ValueError` if the server lacks it or fails."""
    try:
        names = await client.models()
    except EnvError as error:
        raise ValueError(f"the server of --url cannot list its models: {describe_error(error)}") from error
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or (names and wanted not in names):
        listed = ", ".join(names[:10]) or "none that it tells"
        raise ValueError(f"model {wanted!r} of {client.server.url}: use one of its models: {listed}")
    return wanted


async def _show_isolation(config: RunConfig, progress: Progress) -> None:
    """Show the sandbox's isolation if an environment runs programs of the model."""
    if any(env.runs_programs for env in config.environments.values()):
        shared_sandbox().admit(config.rollout.programs)
        progress.note(await in_thread(report_sandbox))


async def _answers(
    episodes: RemoteEpisodes,
    tasks: Sequence[Task],
    settings: EvalConfig,
    progress: Progress,
    kept: KeptAnswers,
    *,
    label: str,
) -> list[Group]:
    """Return the groups of answers in the order of the tasks, and keep them as they come. Raise as `Evaluator.answers`."""
    watch = FailureWatch(settings.max_failures, setting="eval.max_failures")
    tickets = [
        Ticket(number=number, task=task, admitted=NO_VERSION, sampling=settings.sampling)
        for number, task in enumerate(tasks)
    ]
    progress.stage(f"eval-{label}", len(tasks))
    done: list[Group] = []
    count = SamplingCount(f"evaluation of {label}", asked=len(tasks) * settings.answers_per_task)

    async def answered(ticket: Ticket) -> Group:
        group = kept.of(ticket)
        if group is None:
            group = await episodes.run_group(ticket, settings.answers_per_task)
            kept.keep(group)
        watch.add(group)
        done.append(group)
        count.add(group)
        env = ticket.task.env.name
        progress.update(len(done), {f"env/{env}/reward": mean([r for g in of_env(done, env) for r in g.rewards_G])})
        return group

    limit = Deadline(seconds=settings.timeout_s, setting="eval.timeout_s")
    async with sampling_shown(progress, count):
        groups = await within(
            limit,
            together(map(answered, tickets)),
            stage=f"eval of {label}",
            waiting_for="held-out answers",
            last_progress=lambda: episodes.heard,
        )
    watch.conclude()
    return groups


def _env_result(groups: list[Group], *, asked: int | None) -> dict[str, float]:
    """Return an environment's results. The server counts the tokens of an answer."""
    scored = [answer for group in groups for answer in group.trajectories]
    tokens = mean([answer.thinking_tokens + answer.answer_tokens for answer in scored])
    return env_result(groups, asked=asked) | {"tokens": tokens}
