"""The stage `report`, which a tool runs."""

from temper.orchestrator.stages.stage import Role, Stage, defer_import

STAGE = Stage(
    name="report",
    role=Role.REPORT,
    run=defer_import("temper.orchestrator.tools.inspect.report.run_report", "run_report"),
)
