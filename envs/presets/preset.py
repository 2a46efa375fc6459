"""A standard set, as plain declared data."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from temper.envs.data.config import DataConfig

PLACE = ("path", "config", "split", "revision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published set of evaluation tasks: the settings that play it here, and what a quoted number needs to say."""

    name: str
    """What it is called on the command line and in a configuration."""
    title: str
    """What people call it."""
    env: str
    """The environment that plays it."""
    data: DataConfig
    """Its rows, as they are published."""
    rows: int
    """How many they are."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """`envs.NAME.options`, among them the prompt if it is not the rows' own."""
    prompt: str
    """If the prompt is published."""
    rule: str
    """What makes an answer right."""
    tokens: int
    """Most tokens of an answer, its thought included, unless the user sets a limit."""
    samples: str
    """How it is usually quoted: answers to a task, and how they are drawn."""
    source: str
    """The paper."""
    differs: str
    """What differs from the published harness."""

    def env_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of an environment that is this set, as a configuration has them, with what is given over them.

        It is for evaluation alone, without a share of training, unless `given` has data of its own to train on. Data that is
        given by its place is of the published form: its columns and its filter stay unless others are given. Raise
        `ValueError` if `given` asks for another environment, or for training on the set itself.
        """
        if given.get("kind") not in (None, self.env):
            raise ValueError(f"kind={given['kind']}: the preset {self.name} is played by {self.env}; leave kind out")
        data = given.get("data")
        if data is not None and self._is_own(data):
            raise ValueError(
                f"data={data}: these rows are the preset {self.name}, which is for evaluation; give others"
            )
        options = {**self.options, **(given.get("options") or {})}
        share = {"share": 0.0 if data is None else 1.0}
        whole = {**share, **given, "kind": self.env, "options": options}
        if data is None and whole["share"] != 0:
            raise ValueError(
                f"share={whole['share']}: the preset {self.name} is for evaluation and is not trained on; leave share out, or "
                f"give data to train on"
            )
        return whole | {"eval_data": self._data(given.get("eval_data"))}

    def _data(self, given: Any) -> dict[str, Any]:
        own = as_given(self.data)
        told = {"path": given} if isinstance(given, str) else dict(given or {})
        if told.get("path") not in (None, self.data.path):
            own = {name: value for name, value in own.items() if name not in PLACE}
        return own | told

    def _is_own(self, data: Any) -> bool:
        told = {"path": data} if isinstance(data, str) else dict(data)
        own = as_given(self.data)
        return all(told.get(name) in (None, own.get(name)) for name in ("config", "split")) and (
            told.get("path") == self.data.path
        )


def as_given(data: DataConfig) -> dict[str, Any]:
    return {
        each.name: value
        for each in fields(DataConfig)
        if (value := vars(data)[each.name]) != (None if each.default is MISSING else each.default) and value != {}
    }
