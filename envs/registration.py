"""The environments in gymnasium: `import temper.envs.registration`, then `gymnasium.make("temper/math-v0", level=2)`.

`reset` draws a task, or takes one as `options={"task": task}`. `step` takes the text of a turn, by default without
thinking.
"""

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium

from temper.envs.binding import bind
from temper.envs.catalog import ENVIRONMENTS, make_drawing_env
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.source import SizedSource, open_source

NAMESPACE = "temper"
NUMBERS = 2**31


def make(
    *,
    env_id: str,
    level: int = 1,
    options: Mapping[str, Any] | None = None,
    thinking: bool = False,
    data: str | None = None,
    split: str = "train",
    max_turns: int | None = None,
) -> gymnasium.Env[str, str]:
    """Make an environment that draws tasks of a split, generated or from rows of `data`. For the settings see `envs.NAME`.

    Raise `ValueError` for wrong settings.
    """
    config = EnvConfig(
        kind=env_id,
        level=level,
        options=dict(options or {}),
        thinking=thinking,
        data=None if data is None else DataConfig(path=data),
        max_turns=max_turns,
    )
    env = bind(env_id, config)
    source = open_source(env, split=split, seed=0)
    return make_drawing_env(env.definition, partial(_drawn, source))


def _drawn(source: SizedSource, rng: random.Random) -> Task:
    return source.task(rng.randrange(source.size or NUMBERS))  # rows keep the order of the first epoch, which is cached


for name in ENVIRONMENTS:
    gymnasium.register(f"{NAMESPACE}/{name}-v0", entry_point=f"{__name__}:make", kwargs={"env_id": name})
