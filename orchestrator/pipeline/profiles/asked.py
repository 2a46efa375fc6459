"""What a configuration gives, and what is chosen beside it: each choice sees what was given, and is overridden by it."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, TypeVar

from temper.learner.config import LearnerConfig
from temper.orchestrator.config.run_config import SupervisionConfig
from temper.orchestrator.config.schema import typed
from temper.orchestrator.loop.deadline import DeadlineConfig
from temper.orchestrator.stages.stage import Stage, all_stages
from temper.rollout.episodes.worker import RolloutConfig

T = TypeVar("T", bool, int, float, str)
Given = dict[str, Any]
"""A configuration as a YAML file would have it."""


@cache
def usual() -> Given:
    """Return the settings that a profile may choose, as they are without being told."""
    parts: dict[str, Any] = {
        "rollout": RolloutConfig(),
        "learner": LearnerConfig(),
        "supervision": SupervisionConfig(),
        "deadlines": DeadlineConfig(),
    }
    stages = {name: stage.settings() for name, stage in all_stages().items() if stage.settings is not None}
    return {name: asdict(part) for name, part in (parts | stages).items()}


def found(given: Mapping[str, Any], key: str) -> Any:
    """Return what stands under a dotted key; None where nothing does."""
    value: Any = given
    for word in key.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def usual_value(key: str) -> Any:
    """Return what a setting is without being told; None for one that no profile chooses or goes by."""
    return found(usual(), key)


def stages_with(setting: str) -> tuple[str, ...]:
    """Return the stages that have a setting, such as `timeout_s`."""
    return tuple(name for name in all_stages() if usual_value(f"{name}.{setting}") is not None)


CHOSEN = (
    *("rollout.workers", "rollout.limits.turn_tokens", "rollout.limits.total_tokens", "rollout.limits.timeout_s"),
    *(
        f"rollout.engine.{name}"
        for name in (
            *("dtype", "max_model_len", "max_sequences", "batched_tokens", "tensor_parallel", "threads", "memory_gib"),
            "gpu_memory_utilization",
        )
    ),
    *(
        f"learner.{name}"
        for name in (
            *("ranks", "zero_stage", "bf16", "offload", "micro_batch_tokens", "logit_tokens", "recompute", "threads"),
            *("threads_beside", "shared_prompts", "wire_dtype"),
        )
    ),
    *(f"{stage}.optim.learning_rate" for stage in stages_with("optim.learning_rate")),
    *("rl.groups_per_step", "rl.group_size"),
    *(f"{stage}.timeout_s" for stage in stages_with("timeout_s")),
    *("supervision.stalled_s", "deadlines.start_s"),
)
"""The settings that a profile chooses."""


class ProfiledSettings:
    """A configuration that is given, and what is chosen on top of it. A choice goes by what others came to."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._taken: dict[str, Any] = {}

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings of `CHOSEN` that are not given, as they are now."""
        return {key: self.value(key) for key in CHOSEN if not self.gives(key)}

    def take(self, key: str, value: T) -> T:
        """Choose a value for a setting, unless it is given; returns what it is now.

        What is given in a wrong type is left to the check of the whole configuration.
        """
        assert key in CHOSEN, f"{key} is not among the settings that a profile chooses"
        given = found(self._given, key)
        if given is not None:
            return type(value)(given) if _alike(given, value) else value
        self._taken[key] = value
        return value

    def value(self, key: str) -> Any:
        """Return what a setting is: as given, else as chosen, else as it is without being told."""
        given, usual = found(self._given, key), usual_value(key)
        return given if given is not None and _alike(given, usual) else self._taken.get(key, usual)

    def gives(self, key: str) -> bool:
        """Return whether the configuration gives a setting."""
        return found(self._given, key) is not None

    def gives_all(self) -> bool:
        """Return whether nothing is left to choose for the stages that are listed."""
        unlisted = all_stages().keys() - {stage.name for stage, _ in self.stages()}
        return all(self.gives(key) for key in CHOSEN if key.partition(".")[0] not in unlisted)

    def stages(self) -> list[tuple[Stage[Any], Mapping[str, Any]]]:
        """Return the stages that the configuration lists, each with the settings of its entry."""
        listed = self._given.get("stages")
        entries = [_entry(each) for each in listed] if isinstance(listed, list) else [(name, {}) for name in usual()]
        known = all_stages()
        return [(known[name], given) for name, given in entries if name in known]

    def plays(self) -> bool:
        """Return whether a stage that is listed plays episodes with its settings, for which there must be engines.

        Raise `ValueError` where its settings are none.
        """
        return any(stage.plays(self._settings(stage, own)) for stage, own in self.stages())

    def _settings(self, stage: Stage[Any], own: Mapping[str, Any]) -> Any:
        """Return the settings of an entry, over those of its stage; None for a stage without any."""
        if stage.settings is None:
            return None
        given = self._given.get(stage.name)
        section = typed(stage.settings, given if isinstance(given, Mapping) else {}, under=f"{stage.name}.")
        return typed(section, {key: value for key, value in own.items() if key != "name"}, under=f"{stage.name}.")

    def any_stage(self, key: str, value: object) -> bool:
        """Return whether a setting of the stages has this value in any that is listed, such as `optim.kind`."""
        return any(
            found(given, key) == value or found(self._given, f"{stage.name}.{key}") == value
            for stage, given in self.stages()
        )


def placed(given: Mapping[str, Any], key: str, value: object) -> Given:
    """Return a configuration with a value under a dotted key."""
    word, _, rest = key.partition(".")
    below = given.get(word)
    return {**given, word: placed(below if isinstance(below, Mapping) else {}, rest, value) if rest else value}


def without(given: Mapping[str, Any], key: str) -> Given:
    """Return a configuration without what stands under a dotted key."""
    word, _, rest = key.partition(".")
    below = given.get(word)
    kept = {name: value for name, value in given.items() if name != word}
    return {**kept, word: without(below, rest)} if rest and isinstance(below, Mapping) else kept


def _alike(given: object, value: object) -> bool:
    """Return whether what is given is of the type of a value, if there is one; a whole number is one with a fraction too."""
    if value is None:
        return True
    kind = (int, float) if isinstance(value, float) else type(value)
    return isinstance(given, kind) and isinstance(given, bool) == isinstance(value, bool)


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Return stage and settings of an entry of `stages`; what is none has the name ""."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, given),) = entry.items()
        return str(name), given if isinstance(given, Mapping) else {}
    return "", {}
