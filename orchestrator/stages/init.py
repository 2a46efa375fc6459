"""The stage `init`, which `run_init.py` runs."""

from temper.orchestrator.stages.stage import Role, Stage, deferred

STAGE = Stage(name="init", role=Role.BEGIN, run=deferred("temper.orchestrator.stages.run_init", "run_init"))
