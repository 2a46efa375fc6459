"""The command `debug parity`: the gap between engine and trainer on the same tokens, by layer type."""

import argparse
from pathlib import Path

TEXT = "compare engine and trainer on the same tokens, by layer type"
EPILOG = """examples:
  temper debug parity models/mine
  temper debug parity runs/demo                               its newest checkpoint, as its configuration runs it
  temper debug parity Qwen/Qwen3-0.6B rollout.engine.dtype=bfloat16
  temper debug parity models/mine learner.bf16=true learner.zero_stage=1 rollout.engine.dtype=bfloat16 --json
  temper debug parity models/mine --env math --tokens 512 --out parity.json
  temper debug parity models/mine --prompts asked.jsonl

MODEL is a directory in Hugging Face format, a name on the hub, or a run by its folder or name. Its engine samples answers
(decoding) and scores them in whole passes (prefill). The trainer scores them as a step of the learner does, as configured and
with other settings of its own. To try a setting of the engine, give it and compare again. docs/parity.md says how to read it.
"""


def add_parity_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("parity", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("model", metavar="MODEL", help="see below")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings, as in a configuration"
    )
    asked = command.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompts", type=Path, metavar="FILE", help="a prompt a line, or .jsonl with prompt or messages; the first 8"
    )
    asked.add_argument("--env", metavar="ENV[=DATA]", help="the prompts of an environment's tasks")
    command.add_argument("--tokens", type=int, default=64, metavar="N", help="most tokens of an answer (default: 64)")
    command.add_argument(
        "--at-most", type=float, metavar="NATS", help="the exit status is 1 if the mean gap to decoding is above it"
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.add_argument("--out", type=Path, metavar="FILE", help="write that object to a file")
    command.add_argument("--quiet", action="store_true", help="do not say what is under way")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    # Imported here: vLLM, DeepSpeed and transformers take half a minute to import, and --help needs none of them.
    from temper.orchestrator.cli.run_parity import run_parity

    return run_parity(given)
