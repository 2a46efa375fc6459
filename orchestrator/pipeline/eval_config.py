"""The configuration of an evaluation from the command line, of a model or a run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temper.envs.presets.catalog import preset_of
from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.schema import data_option
from temper.orchestrator.config.text import RawConfig, get_value, merge, parse_yaml, read_text
from temper.orchestrator.pipeline.config import KNOWN, SHARED
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.tracking.metric_names import SYSTEM

LONGEST = 8192
"""Default tokens of an episode, if the model has as many positions."""
EPISODE_S = 900.0
PATIENT: RawConfig = {"rollout": {"limits": {"timeout_s": EPISODE_S}}, "supervision": {"stalled_s": EPISODE_S + 60}}
"""Default time of an episode."""


LIMITS = (
    "eval.sampling.max_tokens",
    "eval.budgets",
    "eval.budget_shares",
    "rollout.limits.turn_tokens",
    "rollout.limits.total_tokens",
)
"""The user's limits of answers. They override the limit of a benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """An evaluation from the command line: overrides, environments and benchmarks by name, each with optional data."""

    overrides: Mapping[str, Any]
    envs: Mapping[str, str | None]
    presets: Mapping[str, str | None]


def of_model(source: ModelSource) -> RawConfig:
    """Return the settings of a model alone: the lengths of its episodes. Raise as `ModelSource.folder`."""
    longest = min(longest_sequence(source.folder) or LONGEST, LONGEST)
    limits = {"turn_tokens": longest, "total_tokens": longest}
    return merge(PATIENT, {"model": {"path": source.path}, "rollout": {"limits": limits}})


def of_run(folder: Path, model: Path) -> RawConfig:
    """Return the settings of a run with its newest model. Raise as `read_text`."""
    given: RawConfig = read_text(folder / "config.yaml", [])
    return given | {"model": {"path": str(model)}}


def label_of(folder: Path) -> str:
    return slug(f"{folder.resolve().name}-{RunDir(folder).state().label}")


def slug(text: str) -> str:
    """Return a text as a valid name of a stage's instance."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_") or "model"
    return f"model-{name}" if name in (*KNOWN, *all_stages(), "metrics", "start", SYSTEM) else name


def with_evaluation(given: RawConfig, request: EvalRequest, *, label: str) -> RawConfig:
    """Return a configuration with a stage `eval` of that label. Raise `ValueError` without any tasks."""
    whole = with_envs({key: value for key, value in given.items() if key in (*SHARED, "eval")}, request)
    if not whole.get("envs"):
        raise ValueError(
            "no tasks to evaluate: give a benchmark, for example --preset gsm8k, or an environment with --env, for example "
            "--env math --data gsm8k_test.jsonl"
        )
    return merge(whole, request.overrides) | {"stages": ["init", {"eval": {"name": label}}]}


def preset_answer_limit(request: EvalRequest, *, given: RawConfig, longest: int | None = None) -> RawConfig:
    """Return the longest answer of the benchmarks, at most `longest` tokens, as a configuration.

    Return nothing if environments are requested too, or if the user's settings `given` limit answers or thinking.
    """
    if not request.presets or request.envs or any(get_value(given, key) is not None for key in LIMITS):
        return {}
    tokens = max(preset_of(name).tokens for name in request.presets)
    return {"eval": {"sampling": {"max_tokens": tokens if longest is None else min(tokens, longest)}}}


def with_envs(given: RawConfig, request: EvalRequest) -> RawConfig:
    """Return a configuration with only the requested environments and benchmarks; unchanged without any.

    All rows of the data count. Raise `ValueError` for a benchmark named like an environment.
    """
    if not (request.envs or request.presets):
        return given
    if both := sorted(request.envs.keys() & request.presets.keys()):
        raise ValueError(f"--env {both[0]} and --preset {both[0]} have the same name; remove one of them")
    known = given.get("envs") or {}
    chosen = {name: (known.get(name) or {}) | _eval_data(data) for name, data in request.envs.items()}
    for data in filter(None, request.envs.values()):
        data_option(data)  # raises for invalid data, while a benchmark accepts a part of it
    chosen |= {name: {"preset": name} | _eval_data(data) for name, data in request.presets.items()}
    return merge(given | {"envs": chosen}, {"eval": {"tasks": None}})


def _eval_data(text: str | None) -> RawConfig:
    """Return data, a path, a name on the hub or a YAML mapping, as the setting of an environment."""
    if text is None:
        return {}
    return {"eval_data": parse_yaml(text) if text.lstrip().startswith("{") else text}


def fresh_name(label: str) -> str:
    return f"eval-{label}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
