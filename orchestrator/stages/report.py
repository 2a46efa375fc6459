"""The stage `report`, which a tool runs."""

from temper.orchestrator.stages.stage import Role, Stage, deferred

STAGE = Stage(
    name="report",
    role=Role.REPORT,
    run=deferred("temper.orchestrator.tools.inspect.report.run_report", "run_report"),
)
