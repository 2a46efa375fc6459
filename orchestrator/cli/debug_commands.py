"""The commands `debug ...`: replay a step of a run, and compare engine and trainer."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from temper.orchestrator.cli.arguments import add_command, add_json, add_run, require_run

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

REPLAY_EPILOG = """examples:
  temper debug replay runs/demo                                         list the steps that can be replayed
  temper debug replay runs/demo --step 26
  temper debug replay runs/demo --step rl/26 --set rl.optim.learning_rate=1e-5
  temper debug replay runs/demo --step 26 --set learner.shared_prompts=false --out replay.json

Trains the recorded batches after a checkpoint again, without engines, with the run's number of ranks. Compares logprob,
advantage and loss factor of each token with the record, and the weights with the run's checkpoint of the step if it exists.
--set trains the step once more with other settings, and compares tokens, gradients and weights by layer with the first replay.
The run's folder is only read, and the run may be running. The exit status is 1 if the replay does not match the record, or if
the step has no record. docs/debugging.md explains the output.
"""
PARITY_EPILOG = """examples:
  temper debug parity models/mine
  temper debug parity runs/demo                               the newest checkpoint with the run's configuration
  temper debug parity Qwen/Qwen3-0.6B rollout.engine.dtype=bfloat16
  temper debug parity models/mine learner.bf16=true learner.zero_stage=1 rollout.engine.dtype=bfloat16 --json
  temper debug parity models/mine --env math --tokens 512 --out parity.json
  temper debug parity models/mine --prompts asked.jsonl

MODEL is a directory in Hugging Face format, a name on the hub, or a run's folder or name. The engine samples answers (decoding)
and scores them in one pass (prefill). The trainer scores them as in a training step, as configured and with other trainer
settings. To try an engine setting, add it and compare again. docs/debugging.md explains the output.
"""


def add_debug_commands(commands: "Commands") -> None:
    """Add the commands to the group."""
    _add_parity(commands)
    _add_replay(commands)


def _add_parity(commands: "Commands") -> None:
    text = "compare engine and trainer on the same tokens, by layer type"
    command = add_command(commands, "parity", _parity, text, epilog=PARITY_EPILOG)
    command.add_argument("model", metavar="MODEL", help="see below")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings, as in a configuration"
    )
    asked = command.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt per line, or .jsonl with prompt or messages (first 8)",
    )
    asked.add_argument("--env", metavar="ENV[=DATA]", help="the prompts of an environment's tasks")
    command.add_argument("--tokens", type=int, default=64, metavar="N", help="maximum tokens per answer (default: 64)")
    command.add_argument(
        "--at-most",
        type=float,
        metavar="NATS",
        help="exit with status 1 if the mean logprob diff to decoding is larger",
    )
    add_json(command)
    command.add_argument("--out", type=Path, metavar="FILE", help="write the JSON object to a file")
    command.add_argument("--quiet", action="store_true", help="print no progress")


def _add_replay(commands: "Commands") -> None:
    text = "train a recorded step again, and compare it by token and layer"
    command = add_command(commands, "replay", _replay, text, epilog=REPLAY_EPILOG)
    add_run(command)
    command.add_argument("--step", metavar="N", help="N or STAGE/N (default: list the steps that can be replayed)")
    command.add_argument(
        "--set",
        dest="sets",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings to compare with",
    )
    command.add_argument("--tokens", type=int, default=20, metavar="N", help="tokens to describe (default: 20)")
    add_json(command)
    command.add_argument("--out", type=Path, metavar="FILE", help="write the JSON object to a file")
    command.add_argument(
        "--scratch", type=Path, metavar="DIR", help="folder for checkpoints (default: a temporary folder)"
    )
    command.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="deadline of one step, and minimum of all other deadlines (default: 1800, and the run's deadlines)",
    )


def _replay(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.debug.replay.answer import answer_replay, answer_replayable
    from temper.orchestrator.tools.debug.replay.replay import ReplayRequest

    run = require_run(given.run).root
    if given.step is None:
        if given.sets:
            raise ValueError("--set needs --step")
        return answer_replayable(run, as_json=given.json, out=given.out)
    if given.tokens < 0:
        raise ValueError(f"--tokens {given.tokens} must be 0 or more")
    if given.deadline is not None and not given.deadline > 0:
        raise ValueError(f"--deadline {given.deadline:g} must be above 0")
    asked = ReplayRequest(step=given.step, sets=tuple(given.sets), shown=given.tokens)
    return answer_replay(
        run, asked, as_json=given.json, out=given.out, scratch=given.scratch, deadline_s=given.deadline
    )


def _parity(given: argparse.Namespace) -> int:
    from temper.orchestrator.cli.run_parity import run_parity

    return run_parity(given)
