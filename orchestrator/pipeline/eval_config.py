"""The configuration of an evaluation that no YAML file describes: of a model or a run, with what the command line asks."""

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
from temper.orchestrator.config.text import merged, parsed, read_text
from temper.orchestrator.pipeline.config import KNOWN, SHARED
from temper.orchestrator.pipeline.profiles.inputs import get_value
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.registry import HELP
from temper.orchestrator.tracking.metric_names import SYSTEM

RawConfig = dict[str, Any]
"""A configuration as a YAML file would have it."""
LONGEST = 8192
"""Most tokens of an episode where nobody says otherwise, in a model that takes as many."""
EPISODE_S = 900.0
PATIENT: RawConfig = {"rollout": {"limits": {"timeout_s": EPISODE_S}}, "supervision": {"stalled_s": EPISODE_S + 60}}
"""How long an episode may take where no configuration says so."""


LIMITS = (
    "eval.sampling.max_tokens",
    "eval.budgets",
    "eval.budget_shares",
    "rollout.limits.turn_tokens",
    "rollout.limits.total_tokens",
)
"""Settings by which the user limits answers: they override a standard set's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """What a command line asks: settings, and environments and standard sets by name, with the data that is named for each."""

    overrides: Mapping[str, Any]
    envs: Mapping[str, str | None]
    presets: Mapping[str, str | None]


def of_model(source: ModelSource) -> RawConfig:
    """Return the settings that follow from a model alone: the lengths of its episodes. Raise as `ModelSource.folder`."""
    longest = min(longest_sequence(source.folder) or LONGEST, LONGEST)
    limits = {"turn_tokens": longest, "total_tokens": longest}
    return merged(PATIENT, {"model": {"path": source.path}, "rollout": {"limits": limits}})


def of_run(folder: Path, model: Path) -> RawConfig:
    """Return the settings of a run, which begins with its newest model. Raises as `read_text`."""
    given: RawConfig = read_text(folder / "config.yaml", [])
    return given | {"model": {"path": str(model)}}


def label_of(folder: Path) -> str:
    return slug(f"{folder.resolve().name}-{RunDir(folder).state().label}")


def slug(text: str) -> str:
    """Return a text as the name of an instance of a stage."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_") or "model"
    return f"model-{name}" if name in (*KNOWN, *HELP, "metrics", "start", SYSTEM) else name


def with_evaluation(given: RawConfig, request: EvalRequest, *, label: str) -> RawConfig:
    """Return a configuration with a stage `eval` of that label. Raise `ValueError` if no tasks are asked."""
    whole = with_envs({key: value for key, value in given.items() if key in (*SHARED, "eval")}, request)
    if not whole.get("envs"):
        raise ValueError(
            "name what is asked: a standard set, for example --preset gsm8k, or an environment with --env, for example "
            "--env math --data gsm8k_test.jsonl"
        )
    return merged(whole, request.overrides) | {"stages": ["init", {"eval": {"name": label}}]}


def preset_answer_limit(request: EvalRequest, *, given: RawConfig, longest: int | None = None) -> RawConfig:
    """Return the longest answer of the standard sets, at most `longest` tokens, as a configuration.

    Return nothing if environments are asked too, or if the user's settings `given` limit answers or thoughts themselves.
    """
    if not request.presets or request.envs or any(get_value(given, key) is not None for key in LIMITS):
        return {}
    tokens = max(preset_of(name).tokens for name in request.presets)
    return {"eval": {"sampling": {"max_tokens": tokens if longest is None else min(tokens, longest)}}}


def with_envs(given: RawConfig, request: EvalRequest) -> RawConfig:
    """Return a configuration with the environments and sets that are asked alone; with none asked it stays.

    All rows of the data are asked. Raise `ValueError` for a set with the name of one of the environments.
    """
    if not (request.envs or request.presets):
        return given
    if both := sorted(request.envs.keys() & request.presets.keys()):
        raise ValueError(f"--env {both[0]} and --preset {both[0]} would be asked under one name; leave one of them out")
    known = given.get("envs") or {}
    chosen = {name: (known.get(name) or {}) | _eval_data(data) for name, data in request.envs.items()}
    for data in filter(None, request.envs.values()):
        data_option(data)  # says what is wrong with it; of a standard set a part may be given
    chosen |= {name: {"preset": name} | _eval_data(data) for name, data in request.presets.items()}
    return merged(given | {"envs": chosen}, {"eval": {"tasks": None}})


def _eval_data(text: str | None) -> RawConfig:
    """Return data that is named, a path, a name on the hub or a mapping in YAML, as the setting of an environment."""
    if text is None:
        return {}
    return {"eval_data": parsed(text) if text.lstrip().startswith("{") else text}


def fresh_name(label: str) -> str:
    return f"eval-{label}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
