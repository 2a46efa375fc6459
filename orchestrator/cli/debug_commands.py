"""The commands `debug ...`: the reasons why a run, or a model in it, does as it does."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from temper.orchestrator.cli.arguments import add_command, add_json, add_run, require_run
from temper.orchestrator.pipeline.finding import Level
from temper.orchestrator.tools.inspect.viewer.loopback import LOOPBACK

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

SHOWN = 50
"""How many findings are printed; --json has all."""
AUDIT_EPILOG = """examples:
  temper debug audit runs/demo
  temper debug audit runs/demo --json | jq '.findings[]'

Reads the folder only: event_log.jsonl, metrics.jsonl, evaluations, checkpoints and trajectories. The event log balances
at every step. No ticket is trained twice or lost. Every step has one row of metrics. Event log, metrics and trajectories
have the same groups. Each checkpoint is whole and holds the tickets that were in flight.
The exit status is 1 if something disagrees.
"""
PORT = 8310
EXPLAIN_EPILOG = f"""examples:
  temper debug explain runs/demo
  temper debug explain runs/demo --stage rl-2 --json | jq '.change_points[0]'
  temper view runs/demo --port {PORT}          serves the pages that the links lead to

Reads the run's folder only; the run may be at work. A metric bends if one straight line does not fit it and two do, so a steady
rise does not bend.
docs/debugging.md says how to read it.
"""
REPLAY_EPILOG = """examples:
  temper debug replay runs/demo                                         which steps can be replayed
  temper debug replay runs/demo --step 26
  temper debug replay runs/demo --step rl/26 --set rl.optim.learning_rate=1e-5
  temper debug replay runs/demo --step 26 --set learner.shared_prompts=false --out replay.json

Trains the recorded batches of the steps after a checkpoint again, without engines, by as many ranks as the run has. Compares
log-probability, advantage and factor of each token with the record, and the weights with the run's checkpoint of the step
where it has one. With --set it trains the step once more with other settings, and compares that with the replay as recorded:
tokens, gradients and weights, by type of layer and by layer. The run's folder is only read; the run may be at work. The exit
status is 0 where the replay as recorded is what the run recorded, 1 where not, or where
the run recorded nothing of the step. docs/debugging.md says more.
"""
PARITY_EPILOG = """examples:
  temper debug parity models/mine
  temper debug parity runs/demo                               its newest checkpoint, as its configuration runs it
  temper debug parity Qwen/Qwen3-0.6B rollout.engine.dtype=bfloat16
  temper debug parity models/mine learner.bf16=true learner.zero_stage=1 rollout.engine.dtype=bfloat16 --json
  temper debug parity models/mine --env math --tokens 512 --out parity.json
  temper debug parity models/mine --prompts asked.jsonl

MODEL is a directory in Hugging Face format, a name on the hub, or a run by its folder or name. Its engine samples answers
(decoding) and scores them in whole passes (prefill). The trainer scores them as a step of the learner does, as configured and
with other settings of its own. To try a setting of the engine, give it and compare again. docs/debugging.md explains it.
"""


def add_debug_commands(commands: "Commands") -> None:
    """Add the commands to the group."""
    _add_parity(commands)
    _add_replay(commands)
    text = "check that the event log, metrics, checkpoints and trajectories of a run agree"
    command = add_command(commands, "audit", _audit, text, epilog=AUDIT_EPILOG)
    add_run(command)
    add_json(command)
    text = "find where the metrics of a run bend, and from which groups the update came there"
    command = add_command(commands, "explain", _explain, text, epilog=EXPLAIN_EPILOG)
    add_run(command)
    command.add_argument(
        "--stage", metavar="NAME", help="the stage that is explained (default: the newest that samples and trains)"
    )
    add_json(command)
    command.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"port of `temper view` in the links (default: {PORT})"
    )


def _add_parity(commands: "Commands") -> None:
    text = "compare engine and trainer on the same tokens, by layer type"
    command = add_command(commands, "parity", _parity, text, epilog=PARITY_EPILOG)
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
    add_json(command)
    command.add_argument("--out", type=Path, metavar="FILE", help="write that object to a file")
    command.add_argument("--quiet", action="store_true", help="do not say what is under way")


def _add_replay(commands: "Commands") -> None:
    text = "train a recorded step again, and say what differs, token by token and layer by layer"
    command = add_command(commands, "replay", _replay, text, epilog=REPLAY_EPILOG)
    add_run(command)
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
    add_json(command)
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


def _audit(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.debug.audit.audit import audit
    from temper.orchestrator.tools.finding import findings_to_json

    run = require_run(given.run.resolve())
    found = audit(run)
    data = findings_to_json(found)
    if given.json:
        print(json.dumps({"run": str(run.root)} | data, indent=1))
    else:
        console = Console(highlight=False)
        for finding in found[:SHOWN]:
            finding.print(console, width=max(14, len(finding.where) + 1))
        if len(found) > SHOWN:
            print(f"... and {len(found) - SHOWN} more (--json has all)")
        failed = data["failures"]
        print(f"{run.root}: {f'{failed} things do not agree' if failed else 'everything agrees'}")
    return 1 if any(finding.level is Level.FAILURE for finding in found) else 0


def _explain(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.inspect.explain.explanation import explain, print_explanation

    found = explain(require_run(given.run), stage=given.stage)
    if given.json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print_explanation(found, Console(highlight=False), viewer=f"http://{LOOPBACK}:{given.port}/")
    return 0


def _replay(given: argparse.Namespace) -> int:
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


def _parity(given: argparse.Namespace) -> int:
    from temper.orchestrator.cli.run_parity import run_parity

    return run_parity(given)
