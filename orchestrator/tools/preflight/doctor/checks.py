"""The checks, in the order in which they are made: a new one is a function in the file of what it looks at, and a line here."""

from collections.abc import Iterator

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.finding import Finding, Level, ok
from temper.orchestrator.run.redaction import blanked
from temper.orchestrator.tools.preflight.doctor.check import LONG_S, Check, examined
from temper.orchestrator.tools.preflight.doctor.data import (
    look_at_limits,
    look_at_overlap,
    look_at_prompts,
    look_at_rows,
    look_at_stages,
)
from temper.orchestrator.tools.preflight.doctor.gold import look_at_environments
from temper.orchestrator.tools.preflight.doctor.gpus import look_at_devices, look_at_driver, look_at_kernels
from temper.orchestrator.tools.preflight.doctor.machine import (
    SETUP,
    look_at_open_files,
    look_at_packages,
    look_at_ports,
    look_at_sandbox,
)
from temper.orchestrator.tools.preflight.doctor.model import (
    look_at_files,
    look_at_output_layer,
    look_at_thoughts,
    look_at_tool_calls,
    look_at_turns,
)
from temper.orchestrator.tools.preflight.doctor.nodes import look_at_nodes
from temper.orchestrator.tools.preflight.doctor.room import look_at_memory, look_at_push, look_at_room
from temper.orchestrator.tools.preflight.doctor.store import look_at_store
from temper.orchestrator.tools.preflight.doctor.subject import Subject


def look_at_configuration(subject: Subject) -> Iterator[Finding]:
    """Tell why there is no configuration where one was given."""
    if subject.fault is not None:
        raise subject.fault
    if subject.given is not None:
        stages = ", ".join(one.name for one in subject.instances)
        yield ok(f"{', '.join(subject.config.environments) or 'no environments'}; stages {stages}")


MODEL = ("model",)
PROMPTS = (*MODEL, "end of turn", "rows")
"""What is looked at first where a check reads prompts as the model is given them."""
CHECKS = (
    Check(
        name="configuration",
        look=look_at_configuration,
        remedy="correct the file or the settings given: `temper config FILE --explain KEY` says what one may be",
    ),
    Check(name="versions", look=look_at_packages, remedy=SETUP, quick=True),
    Check(
        name="driver",
        look=look_at_driver,
        remedy="look whether nvidia-smi answers, and install NVIDIA's driver again where it does not",
        quick=True,
    ),
    Check(
        name="open files",
        look=look_at_open_files,
        remedy="raise it in the shell that starts the run (ulimit -n)",
        quick=True,
    ),
    Check(name="ports", look=look_at_ports, remedy="free some, or widen net.ipv4.ip_local_port_range", quick=True),
    Check(
        name="sandbox",
        look=look_at_sandbox,
        remedy="lower sandbox.min_level, or give the machine what docs/sandbox.md names",
        quick=True,
    ),
    Check(
        name="cluster",
        look=look_at_nodes,
        remedy="look at the cluster by `ray status`, and let the node join again",
        limit_s=LONG_S,
    ),
    Check(
        name="model",
        look=look_at_files,
        remedy="download the model again, or name another with model.path=",
        of_run=True,
        blocks=True,
    ),
    Check(
        name="output layer",
        look=look_at_output_layer,
        remedy="download the model again, or name another with model.path=",
        of_run=True,
        quick=True,
        after=MODEL,
    ),
    Check(
        name="kernels",
        look=look_at_kernels,
        remedy="install them with make setup, or run on CPUs",
        of_run=True,
        after=MODEL,
    ),
    Check(name="devices", look=look_at_devices, remedy="lower learner.ranks or rollout.workers", quick=True),
    Check(
        name="memory",
        look=look_at_memory,
        remedy="look at `temper doctor --plan FILE`, which works it out by part",
        quick=True,
        after=MODEL,
    ),
    Check(name="push", look=look_at_push, remedy="set learner.transport=auto", quick=True, after=MODEL),
    Check(
        name="room", look=look_at_room, remedy="free some, or give runs_dir= on another disk", quick=True, after=MODEL
    ),
    Check(
        name="thoughts",
        look=look_at_thoughts,
        remedy="give the tags of the model with model.thought_tags",
        of_run=True,
        after=MODEL,
    ),
    Check(
        name="end of turn",
        look=look_at_turns,
        remedy="give the token that ends a turn with model.end_of_turn",
        of_run=True,
        after=MODEL,
    ),
    Check(
        name="rows",
        look=look_at_rows,
        remedy="correct the data, or let bad rows pass with envs.NAME.on_error=skip",
        of_run=True,
        limit_s=LONG_S,
    ),
    Check(
        name="tool calls",
        look=look_at_tool_calls,
        remedy="give the model another template with model.chat_template, or declare its calls with model.tool_calls",
        of_run=True,
        after=PROMPTS,
    ),
    Check(
        name="stages",
        look=look_at_stages,
        remedy="correct what the stage reads, or leave it out of stages",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check(
        name="prompts",
        look=look_at_prompts,
        remedy="correct the data, or let bad rows pass with envs.NAME.on_error=skip",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check(
        name="overlap",
        look=look_at_overlap,
        remedy="correct the data, or give other rows with envs.NAME.eval_data",
        of_run=True,
        after=("rows",),
        limit_s=LONG_S,
    ),
    Check(
        name="limits",
        look=look_at_limits,
        remedy="leave the limits out that are given, which the profile then chooses",
        of_run=True,
    ),
    Check(
        name="environments",
        look=look_at_environments,
        remedy="correct the environment; temper env check --env NAME tries it alone",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check(name="tracking", look=look_at_store, remedy="give another tracking.uri"),
)


def examine(subject: Subject) -> Iterator[Finding]:
    """Yield what every check finds, one after the other. Raises nothing."""
    return examined(CHECKS, subject)


def start_notes(config: Config | None) -> list[str]:
    """Return a line for each warning and failure of the checks that take a moment, for people, at the start of a run; of the
    machine alone without its configuration.

    Those on which they build are made too and say nothing: a model that is not here yet is no fault of a run that gets it.
    """
    quick = {check.name for check in CHECKS if check.quick}
    needed = quick.union(*(check.after for check in CHECKS if check.quick))
    found = examined([check for check in CHECKS if check.name in needed], Subject(given=config))
    return [blanked(one.line) for one in found if one.where in quick and one.level is not Level.OK]
