"""The checks in order. To add one, write a function in the file of its subject, and add a line here."""

from collections.abc import Iterator

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.finding import Finding, Level, ok
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.tools.preflight.doctor import data, gpus, machine, memory, model, nodes, reference, store
from temper.orchestrator.tools.preflight.doctor.check import LONG_S, Check, run_check
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget


def inspect_configuration(target: CheckTarget) -> Iterator[Finding]:
    """Raise the error of an invalid configuration."""
    if target.fault is not None:
        raise target.fault
    if target.requested is not None:
        stages = ", ".join(one.name for one in target.requested.instances)
        yield ok(f"{', '.join(target.requested.environments) or 'no environments'}; stages {stages}")


MODEL = ("model",)
TOKENIZER = (*MODEL, "tokenizer")
PROMPTS = (*TOKENIZER, "end of turn", "rows")
"""Checks that must pass before prompts are rendered."""
OTHER_MODEL = "download the model again, or name another with model.path="
BAD_ROWS = "correct the data"
CHECKS = (
    Check(
        "configuration",
        inspect_configuration,
        "correct the file or the settings: `temper config FILE --explain KEY` describes a setting",
    ),
    Check("versions", machine.inspect_packages, machine.SETUP, quick=True),
    Check(
        "driver",
        gpus.inspect_driver,
        "check whether nvidia-smi works, and reinstall NVIDIA's driver if it does not",
        local=True,
        quick=True,
    ),
    Check(
        "open files", machine.inspect_open_files, "raise it in the shell that starts the run (ulimit -n)", quick=True
    ),
    Check("ports", machine.inspect_ports, "free some, or widen net.ipv4.ip_local_port_range", quick=True),
    Check(
        "sandbox",
        machine.inspect_sandbox,
        "lower sandbox.min_level, or set up the machine as in docs/environments.md",
        quick=True,
    ),
    Check(
        "cluster",
        nodes.inspect_nodes,
        "check the cluster with `ray status`, and let the node join again",
        limit_s=LONG_S,
    ),
    Check("model", model.inspect_files, OTHER_MODEL, of_run=True, blocks=True),
    Check("output layer", model.inspect_output_layer, OTHER_MODEL, of_run=True, quick=True, after=MODEL),
    Check("kernels", gpus.inspect_kernels, "install them with make setup, or run on CPUs", of_run=True, after=MODEL),
    Check("devices", gpus.inspect_devices, "lower learner.ranks or rollout.workers", local=True, quick=True),
    Check(
        "memory",
        memory.inspect_memory,
        "see the parts with `temper doctor --plan FILE`",
        local=True,
        quick=True,
        after=MODEL,
    ),
    Check("push", memory.inspect_push, "set learner.transport=auto", local=True, quick=True, after=MODEL),
    Check(
        "disk", memory.inspect_disk_space, "free some space, or set runs_dir= on another disk", quick=True, after=MODEL
    ),
    Check("tokenizer", model.inspect_tokenizer, OTHER_MODEL, of_run=True, after=MODEL),
    Check(
        "thinking",
        model.check_thinking_tags,
        "set model.thinking_tags",
        of_run=True,
        after=TOKENIZER,
    ),
    Check(
        "end of turn",
        model.inspect_turns,
        "set model.end_of_turn",
        of_run=True,
        after=TOKENIZER,
    ),
    Check("rows", data.inspect_rows, BAD_ROWS, of_run=True, limit_s=LONG_S),
    Check(
        "rewards",
        data.inspect_rewards,
        "correct the reward. `temper env check --env NAME` tests it alone",
        of_run=True,
        after=("rows",),
        limit_s=LONG_S,
    ),
    Check(
        "chat template",
        model.inspect_template,
        "set model.chat_template, or declare the model's calls in model.tool_calls",
        of_run=True,
        after=PROMPTS,
    ),
    Check(
        "stages",
        data.inspect_stages,
        "correct the data of the stage, or remove it from stages",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check("prompts", data.inspect_prompts, BAD_ROWS, of_run=True, after=PROMPTS, limit_s=LONG_S),
    Check(
        "overlap",
        data.inspect_overlap,
        "correct the data, or set envs.NAME.eval_data",
        of_run=True,
        after=("rows",),
        limit_s=LONG_S,
    ),
    Check(
        "limits",
        data.inspect_limits,
        "remove the limits from your settings, so that the profile chooses them",
        of_run=True,
    ),
    Check(
        "environments",
        reference.inspect_environments,
        "correct the environment. `temper env check --env NAME` tests it alone",
        of_run=True,
        after=PROMPTS,
        limit_s=LONG_S,
    ),
    Check("tracking", store.inspect_store, "set another tracking.uri"),
)


def examine(target: CheckTarget) -> Iterator[Finding]:
    """Yield the findings of every check in order. Never raises."""
    return run_check(CHECKS, target)


def start_notes(config: Config) -> list[str]:
    """Return a line for each warning and failure of the quick checks at the start of a run.

    The checks that they depend on report nothing: a run downloads a missing model.
    """
    quick = {check.name for check in CHECKS if check.quick}
    needed = quick.union(*(check.after for check in CHECKS if check.quick))
    found = run_check([check for check in CHECKS if check.name in needed], CheckTarget(requested=config))
    return [blank_text(one.line) for one in found if one.where in quick and one.level is not Level.OK]
