"""gymnasium's own check of every environment that makes tasks without a server or a file."""

from importlib.metadata import version
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import temper.envs.registration
from temper.envs.catalog import ENVIRONMENTS

NEED_A_SOURCE = sorted(name for name, env in ENVIRONMENTS.items() if env.generate is None)


@pytest.mark.judges(suite="gymnasium", run="`check_env` on each environment that generates tasks")
def test_check_env_passes(record_property: Any) -> None:
    record_property("version", version("gymnasium"))
    names = sorted(ENVIRONMENTS.keys() - {*NEED_A_SOURCE})
    differing = []
    for name in names:
        try:
            check_env(
                gymnasium.make(f"{temper.envs.registration.NAMESPACE}/{name}-v0").unwrapped, skip_render_check=True
            )
        except Exception as error:
            differing.append(f"{name}: {error!r}"[:200])
    record_property("passed", len(names) - len(differing))
    record_property("differs", "; ".join(differing) or f"0, not run: {len(NEED_A_SOURCE)}")
    record_property("why", f"tasks come from rows or a server: {', '.join(NEED_A_SOURCE)}")
    assert not differing
