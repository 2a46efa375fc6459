"""A benchmark as plain declared data."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from temper.envs.data.config import DataConfig

PLACE = ("path", "config", "split", "revision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published set of evaluation tasks: its settings here, and the facts to quote with a score."""

    name: str
    """Its name on the command line and in a configuration."""
    title: str
    """Its name for people."""
    env: str
    """The environment that runs it."""
    data: DataConfig
    """Its rows as published."""
    rows: int
    """The number of its rows."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """`envs.NAME.options`, including the prompt if the rows have none."""
    prompt: str
    """The source of the prompt."""
    rule: str
    """The rule for a right answer."""
    tokens: int = 4096
    """Token limit of an answer with its thinking, unless the user sets one."""
    samples: str = "1, greedy"
    """The usual way to quote it: answers per task and sampling."""
    source: str
    """The paper."""
    differs: str
    """Differences from the published harness."""

    def env_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the environment settings of the benchmark, with `given` on top, as a configuration has them.

        It is for evaluation only, without a training share, unless `given` has data to train on. Data in `given` with only
        a path keeps the benchmark's columns and filter. Raise `ValueError` if `given` sets another environment, or trains
        on the benchmark itself.
        """
        if given.get("kind") not in (None, self.env):
            raise ValueError(f"kind={given['kind']}: the preset {self.name} uses {self.env}; remove kind")
        data = given.get("data")
        if data is not None and self._is_own(data):
            raise ValueError(
                f"data={data}: these rows are the preset {self.name}, which is for evaluation; set other data"
            )
        options = {**self.options, **(given.get("options") or {})}
        share = {"share": 0.0 if data is None else 1.0}
        settings = {**share, **given, "kind": self.env, "options": options}
        if data is None and settings["share"] != 0:
            raise ValueError(
                f"share={settings['share']}: the preset {self.name} is for evaluation only; remove share, or "
                f"set data to train on"
            )
        return settings | {"eval_data": self._data(given.get("eval_data"))}

    def _data(self, given: Any) -> dict[str, Any]:
        own = to_settings(self.data)
        source = {"path": given} if isinstance(given, str) else dict(given or {})
        if source.get("path") not in (None, self.data.path):
            own = {name: value for name, value in own.items() if name not in PLACE}
        return own | source

    def _is_own(self, data: Any) -> bool:
        source = {"path": data} if isinstance(data, str) else dict(data)
        own = to_settings(self.data)
        return all(source.get(name) in (None, own.get(name)) for name in ("config", "split")) and (
            source.get("path") == self.data.path
        )


def to_settings(data: DataConfig) -> dict[str, Any]:
    return {
        each.name: value
        for each in fields(DataConfig)
        if (value := vars(data)[each.name]) != (None if each.default is MISSING else each.default) and value != {}
    }
