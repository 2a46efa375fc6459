"""The checks, in their order: a new one is a function in the file of its subject, and a line here."""

from collections.abc import Iterator

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.finding import Finding, Level, ok
from temper.orchestrator.run.redaction import blanked
from temper.orchestrator.tools.preflight.doctor import data, gpus, machine, model, nodes, reference, room, store
from temper.orchestrator.tools.preflight.doctor.check import LONG_S, Check, examined
from temper.orchestrator.tools.preflight.doctor.subject import Subject


def look_at_configuration(subject: Subject) -> Iterator[Finding]:
    """Tell why a configuration can't be read."""
    if subject.fault is not None:
        raise subject.fault
    if subject.given is not None:
        stages = ", ".join(one.name for one in subject.given.instances)
        yield ok(f"{', '.join(subject.given.environments) or 'no environments'}; stages {stages}")


MODEL = ("model",)
PROMPTS = (*MODEL, "end of turn", "rows")
"""Checks before one that renders prompts."""
OTHER_MODEL = "download the model again, or name another with model.path="
BAD_ROWS = "correct the data, or let bad rows pass with envs.NAME.on_error=skip"
CHECKS = (
    Check(
        "configuration",
        look_at_configuration,
        "correct the file or the settings given: `temper config FILE --explain KEY` says what one may be",
    ),
    Check("versions", machine.look_at_packages, machine.SETUP, quick=True),
    Check(
        "driver",
        gpus.look_at_driver,
        "look whether nvidia-smi answers, and install NVIDIA's driver again where it does not",
        local=True,
        quick=True,
    ),
    Check(
        "open files", machine.look_at_open_files, "raise it in the shell that starts the run (ulimit -n)", quick=True
    ),
    Check("ports", machine.look_at_ports, "free some, or widen net.ipv4.ip_local_port_range", quick=True),
    Check(
        "sandbox",
        machine.look_at_sandbox,
        "lower sandbox.min_level, or give the machine what docs/environments.md names",
        quick=True,
    ),
    Check(
        "cluster",
        nodes.look_at_nodes,
        "look at the cluster by `ray status`, and let the node join again",
        limit_s=LONG_S,
    ),
    Check("model", model.look_at_files, OTHER_MODEL, of_run=True, blocks=True),
    Check("output layer", model.look_at_output_layer, OTHER_MODEL, of_run=True, quick=True, after=MODEL),
    Check("kernels", gpus.look_at_kernels, "install them with make setup, or run on CPUs", of_run=True, after=MODEL),
    Check("devices", gpus.look_at_devices, "lower learner.ranks or rollout.workers", local=True, quick=True),
    Check(
        "memory",
        room.look_at_memory,
        "look at `temper doctor --plan FILE`, which works it out by part",
        local=True,
        quick=True,
        after=MODEL,
    ),
    Check("push", room.look_at_push, "set learner.transport=auto", local=True, quick=True, after=MODEL),
    Check("room", room.look_at_room, "free some, or give runs_dir= on another disk", quick=True, after=MODEL),
    Check(
        "thinking",
        model.check_thinking_tags,
        "give the tags of the model with model.thinking_tags",
        of_run=True,
        after=MODEL,
    ),
    Check(
        "end of turn",
        model.look_at_turns,
        "give the token that ends a turn with model.end_of_turn",
        of_run=True,
        after=MODEL,
    ),
    Check("rows", data.look_at_rows, BAD_ROWS, of_run=True, limit_s=LONG_S),
    Check(
        "tool calls",
        model.look_at_tool_calls,
        "give the model another template with model.chat_template, or declare its calls with model.tool_calls",
        of_run=True,
        after=PROMPTS,
    ),
    Check(
        "stages",
        data.look_at_stages,
        "correct what the stage reads, or leave it out of stages",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check("prompts", data.look_at_prompts, BAD_ROWS, of_run=True, after=PROMPTS, limit_s=LONG_S),
    Check(
        "overlap",
        data.look_at_overlap,
        "correct the data, or give other rows with envs.NAME.eval_data",
        of_run=True,
        after=("rows",),
        limit_s=LONG_S,
    ),
    Check(
        "limits",
        data.look_at_limits,
        "leave the limits out that are given, which the profile then chooses",
        of_run=True,
    ),
    Check(
        "environments",
        reference.look_at_environments,
        "correct the environment; temper env check --env NAME tries it alone",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check("tracking", store.look_at_store, "give another tracking.uri"),
)


def examine(subject: Subject) -> Iterator[Finding]:
    """Yield the findings of every check, one after the other. Raises nothing."""
    return examined(CHECKS, subject)


def start_notes(config: Config | None) -> list[str]:
    """Return a line for each warning and failure of the quick checks, at the start of a run; None examines the machine alone.

    Checks on which they build say nothing: a model that is not here yet is no fault of a run that downloads it.
    """
    quick = {check.name for check in CHECKS if check.quick}
    needed = quick.union(*(check.after for check in CHECKS if check.quick))
    found = examined([check for check in CHECKS if check.name in needed], Subject(given=config))
    return [blanked(one.line) for one in found if one.where in quick and one.level is not Level.OK]
