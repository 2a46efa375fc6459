"""The command line: `temper COMMAND ...`, or `python -m temper.orchestrator COMMAND ...`."""

import argparse
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from temper.envs.core.bounds import suggest_name
from temper.orchestrator.cli.arguments import Help, Parser
from temper.orchestrator.cli.config_command import add_config_command
from temper.orchestrator.cli.debug_commands import add_debug_commands
from temper.orchestrator.cli.doctor_commands import add_doctor_commands
from temper.orchestrator.cli.env_commands import add_env_commands
from temper.orchestrator.cli.eval_command import add_eval_command, is_override
from temper.orchestrator.cli.exit_status import ends_unread, exit_status
from temper.orchestrator.cli.look_commands import add_look_commands
from temper.orchestrator.cli.push_command import add_push_command
from temper.orchestrator.cli.reproduce_command import add_reproduce_command
from temper.orchestrator.cli.run_commands import add_run_commands
from temper.orchestrator.cli.serve_command import add_serve_command
from temper.orchestrator.cluster.this_machine import bypass_proxies, module_folder, search_last
from temper.orchestrator.config.text import is_file, overridden, read_layers, without_plus
from temper.orchestrator.pipeline.config import check_keys

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

GROUPS = {
    "train and evaluate": ("run", "eval", "fork", "submit", "serve", "reproduce"),
    "look at runs": ("status", "scale", "report", "view", "ui", "push"),
    "prepare and check": ("config", "doctor", "env", "debug"),
}
"""The commands as `--help` lists them. Those of two words are listed by the first one."""
EPILOG = """examples:
  temper run configs/demo.yaml
  temper run configs/demo.yaml name=mine seed=2 rl.steps=50
  temper run configs/demo.yaml --dry-run
  temper run configs/recipes/one_gpu.yaml profile=gpu80
  temper run configs/demo.yaml longer.yaml seed=2     (later files override earlier ones)
  temper eval models/mine --preset gsm8k --greedy
  temper fork runs/demo --from rl/25 name=slow rl.optim.learning_rate=1e-5
  temper status runs/demo --watch
  temper view runs/demo
  temper config --explain rl.max_lag
  temper doctor configs/demo.yaml
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G
  temper env check --env code --data humaneval.jsonl
  temper debug replay runs/demo --step 26
`temper COMMAND --help` has more examples.

The files of a run are in runs/<name>/. Rerun the same command to resume a run. Finished stages are skipped.

Settings that depend on the hardware (precision, memory, lengths, batches, learning rates) are chosen if you do not set them:
for the cluster (profile=auto) or for a named size (profile=cpu, gpu24, gpu80, ...). docs/hardware.md has the rules.

A resumed run may change some settings. Memory, time-outs, workers, threads, intervals and tracking are free. Changes of steps,
learning rates, shares and lengths are recorded in metrics.jsonl, the tracker and the report. Model, data and loss are fixed:
fork the run, or set another name=.
A stage may appear twice in `stages`: the second `rl` is rl-2, and `- rl: {name: rl_tools, steps: 100}` has separate settings.
Set them with rl-2.steps=100 or rl_tools.steps=100. rl.steps applies to all of them.
"""
TWO_WORDS = ("report --compare", "doctor --plan")
"""Commands that the first word's own parser does not read."""


def version() -> str:
    """Return the version of the installed package."""
    try:
        return metadata.version("temper")
    except metadata.PackageNotFoundError:
        return "not installed"


def parser() -> argparse.ArgumentParser:
    """Return the argument parser, with help that teaches."""
    root: argparse.ArgumentParser = Parser(
        prog="temper",
        epilog=EPILOG,
        formatter_class=Help,
    )
    root.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    add_run_commands(commands)
    add_reproduce_command(commands)
    add_eval_command(commands)
    add_serve_command(commands)
    add_look_commands(commands)
    add_push_command(commands)
    add_config_command(commands)
    add_doctor_commands(commands)
    env = _add_group(commands, "env", "check, create and list environments, and grade answers")
    add_env_commands(env)
    debug = _add_group(commands, "debug", "replay a step of a run, and compare engine and trainer")
    add_debug_commands(debug)
    for command in (*commands.choices.values(), *env.choices.values(), *debug.choices.values()):
        command.set_defaults(parser=command)
    texts = {one.dest: one.help for one in commands._choices_actions}
    root.description = "\n\n".join(
        ["Post-train a reasoning language model across many environments at once."]
        + [f"{title}:\n" + "\n".join(f"  {name:9} {texts[name]}" for name in names) for title, names in GROUPS.items()]
    )
    return root


def _add_group(commands: "Commands", name: str, text: str) -> "Commands":
    """Add a command that has commands of its own."""
    group = commands.add_parser(name, help=text, description=text)
    return group.add_subparsers(dest=name, required=True, metavar="COMMAND")


def join_command(words: list[str]) -> list[str]:
    """Return the command line with the two words of a command as one, which argparse knows."""
    first = " ".join(words[:2])
    return [first, *words[2:]] if first in TWO_WORDS else words


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 done, 1 a fault, 2 a mistake in the input, 3 a hang or too many failures, 130 stopped by a signal, and 141 if the reader
    of its output has gone, as in `temper status | head`.
    """
    search_last(module_folder())
    bypass_proxies()
    with ends_unread():
        return _executed(arguments)


def _executed(arguments: list[str] | None) -> int:
    commands = parser()
    given, later = commands.parse_known_args(join_command(sys.argv[1:] if arguments is None else arguments))
    if wrong := [text for text in later if not ("overrides" in given and is_override(text))]:
        hint = suggest_name(wrong[0], given.parser._option_string_actions)
        given.parser.error(f"unrecognized arguments: {' '.join(wrong)}{hint}")
    if later:  # settings behind options
        given.overrides = [*given.overrides, *later]
    return exit_status(partial(_checked, given))


def _checked(given: argparse.Namespace) -> int:
    """Check files and keys of the settings, then execute the command: its imports take seconds."""
    if "overrides" in given and given.command != "doctor":  # which reports them as findings
        given.overrides = [without_plus(text) for text in given.overrides]
        named = str(vars(given).get("config") or vars(given).get("what") or "")
        settings = [without_plus(named)] if "=" in named else []
        is_complete = is_file(named)
        text = (
            read_layers(Path(named), given.overrides) if is_complete else overridden({}, [*settings, *given.overrides])
        )
        check_keys(text, is_complete=is_complete)
    status: int = given.execute(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
