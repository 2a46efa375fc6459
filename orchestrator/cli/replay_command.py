"""The command `debug replay`: a recorded step trained again from the checkpoint before it, and what differs."""

import argparse
from pathlib import Path

from temper.orchestrator.cli.named_model import path_of_run, require_run

EPILOG = """examples:
  temper debug replay runs/demo                                         which steps can be replayed
  temper debug replay runs/demo --step 26
  temper debug replay runs/demo --step rl/26 --set rl.optim.learning_rate=1e-5
  temper debug replay runs/demo --step 26 --set learner.shared_prompts=false --out replay.json

Trains the recorded batches of the steps after a checkpoint again, without engines, by as many ranks as the run has. Compares
log-probability, advantage and factor of each token with the record, and the weights with the run's checkpoint of the step
where it has one. With --set it trains the step once more with other settings, and compares that with the replay as recorded:
tokens, gradients and weights, by type of layer and by layer. The run's folder is only read; the run may be at work. The exit
status is 0 where the replay as recorded is what the run recorded, 1 where not, or where
the run recorded nothing of the step. docs/replaying.md says more.
"""


def add_replay_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "train a recorded step again, and say what differs, token by token and layer by layer"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("replay", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    command.add_argument(
        "--step", metavar="N", help="the step, N or STAGE/N (default: list those that can be replayed)"
    )
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
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.add_argument("--out", type=Path, metavar="FILE", help="write that object to a file")
    command.add_argument(
        "--scratch", type=Path, metavar="DIR", help="folder for checkpoints meanwhile (default: a temporary one)"
    )
    command.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="longest wait for one step, and for all else that may take less (default: 1800, and the run's deadlines)",
    )
    command.set_defaults(execute=_replay)


def _replay(given: argparse.Namespace) -> int:
    # Imported here: what trains takes seconds to import.
    from temper.orchestrator.tools.debug.replay.answer import answer_replay, answer_replayable
    from temper.orchestrator.tools.debug.replay.replay import ReplayRequest

    run = require_run(given.run).root
    if given.step is None:
        if given.sets:
            raise ValueError("--set is about one step: name it with --step")
        return answer_replayable(run, as_json=given.json, out=given.out)
    if given.tokens < 0:
        raise ValueError(f"--tokens {given.tokens} must be 0 or more")
    if given.deadline is not None and not given.deadline > 0:
        raise ValueError(f"--deadline {given.deadline:g} must be above 0")
    asked = ReplayRequest(step=given.step, sets=tuple(given.sets), shown=given.tokens)
    return answer_replay(
        run, asked, as_json=given.json, out=given.out, scratch=given.scratch, deadline_s=given.deadline
    )
