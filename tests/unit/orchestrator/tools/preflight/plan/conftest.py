from pathlib import Path

import pytest
from support.plans import NANO_9B, plan_on
from support.recipe_pages import models_in

from temper.orchestrator.pipeline.estimate.run_plan import Plan


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `config.json` of every public model under its name."""
    return models_in(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def usual() -> Plan:
    """Nemotron Nano 9B v2 by its recipe on eight GPUs."""
    return plan_on("8xH100-80G", NANO_9B)
