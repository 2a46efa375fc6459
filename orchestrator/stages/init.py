"""The stage `init`, which `run_init.py` runs."""

from temper.orchestrator.stages.stage import Role, Stage, defer_import

STAGE = Stage(name="init", role=Role.BEGIN, run=defer_import("temper.orchestrator.stages.run_init", "run_init"))
