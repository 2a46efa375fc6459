"""The command `parity`: whether engine and trainer say the same of the same tokens, and what keeps them apart."""

import argparse
import time
from pathlib import Path

TEXT = "compare engine and trainer on the same tokens, by layer type, and name the setting that keeps them apart"
EPILOG = """examples:
  temper parity models/mine
  temper parity runs/demo                               its newest checkpoint, as its configuration runs it
  temper parity Qwen/Qwen3-0.6B rollout.engine.dtype=bfloat16
  temper parity models/mine learner.bf16=true learner.zero_stage=1 rollout.engine.dtype=bfloat16 --json
  temper parity models/mine --env math --tokens 512 --out parity.json
  temper parity models/mine --prompts asked.jsonl --starts 1

MODEL is a directory in Hugging Face format, a name on the hub, or a run by its folder or name. Its engine samples answers
(decoding) and scores them in whole passes (prefill); the trainer scores them as a step of the learner does. Where they differ
by more than float32 does, one setting after the other is changed and the gap measured again. An engine starts in some ten
seconds for a small model on a CPU, in a minute or more for a large one: --starts bounds how many. docs/parity.md says how to
read it.
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
        "--starts", type=int, default=8, metavar="N", help="most engines that are started (default: 8); 1 changes none"
    )
    command.add_argument(
        "--deadline",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="of the whole command: what was found till then is told (default: 1800)",
    )
    command.add_argument(
        "--at-most", type=float, metavar="NATS", help="the exit status is 1 where the mean gap is above it"
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.add_argument("--out", type=Path, metavar="FILE", help="write that object to a file")
    command.add_argument("--quiet", action="store_true", help="do not say what is under way")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    began = time.monotonic()
    # Imported here: vLLM, DeepSpeed and transformers take half a minute to import, and --help needs none of them.
    from temper.orchestrator.cli.run_parity import run_parity

    return run_parity(given, began=began)
