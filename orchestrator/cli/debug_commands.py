"""The commands `debug ...`: replay a step of a run, and compare engine and trainer."""

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from temper.orchestrator.cli.arguments import (
    RUNS,
    add_command,
    add_json,
    add_run,
    model_source,
    require_run,
    run_folder,
)
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.text import merge, overridden
from temper.orchestrator.pipeline.config import Config, make_config
from temper.orchestrator.pipeline.eval_config import EvalRequest, of_model, of_run, with_envs
from temper.orchestrator.run.driver import noise_to
from temper.orchestrator.run.folder import RunDir, write_json
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.weights.weight_files import require_complete

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from temper.orchestrator.cli.arguments import Commands
    from temper.orchestrator.tools.debug.parity.answers import Prompt, Setup
    from temper.orchestrator.tools.debug.parity.comparison import Comparison

LOG = Path(RUNS) / "parity.log"
WIDTH = 130

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
  temper debug parity models/mine --env math=rows.jsonl

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
    command.add_argument("--env", metavar="ENV[=DATA]", help="the prompts of an environment's first 8 tasks")
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
    """Compare, print the tables, and return the exit status. Raise `ValueError` or `FileNotFoundError` for wrong input."""
    config = config_of(given)
    from temper.orchestrator.tools.debug.parity.answers import Setup
    from temper.orchestrator.tools.debug.parity.prompts import require_context
    from temper.rollout.tokenizer import load_tokenizer

    assert config.model.source is not None
    model = config.model.source.folder
    require_complete(model)
    setup = Setup(engine=config.rollout.engine, learner=config.learner, sampling=sampling_of(config))
    tokenizer = load_tokenizer(model, config.model.declared())
    prompts = _prompts(given, config, tokenizer)
    require_context(prompts, tokens=given.tokens, longest=setup.engine.max_model_len)
    return _show_parity(given, _compared(given, setup, model, prompts, end=tokenizer.eos_token_id), setup)


def _show_parity(given: argparse.Namespace, found: "Comparison", setup: "Setup") -> int:
    from temper.orchestrator.tools.debug.parity.report import tables, to_json

    data = to_json(found, setup, model=given.model)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.out, data)
    if given.json:
        json.dump(data, sys.stdout, indent=1)
        print()
    else:
        console = Console(highlight=False)
        console.width = max(console.width, WIDTH)
        console.print(tables(found, model=given.model))
    return 1 if given.at_most is not None and not found.configured.decoding.mean <= given.at_most else 0


def _compared(
    given: argparse.Namespace, setup: "Setup", model: Path, prompts: "list[Prompt]", *, end: int
) -> "Comparison":
    from temper.orchestrator.run.progress import Progress
    from temper.orchestrator.tools.debug.parity.comparison import compare

    with os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8") as screen:

        def notify(text: str) -> None:
            if not given.quiet:
                print(f"parity: {text}", file=screen)

        notify(f"the output of libraries is in {LOG}")
        progress = Progress("parity", stream=io.StringIO() if given.quiet else screen)
        try:
            with noise_to(LOG):
                return compare(model, setup, prompts, tokens=given.tokens, end=end, notify=notify, progress=progress)
        except RuntimeError as error:  # from vLLM, which logs the reason
            raise RuntimeError(f"{error}; see {LOG} for the output") from error


def config_of(given: argparse.Namespace) -> Config:
    """Return the configuration of the model's run, or else of the profile, with overrides."""
    from temper.orchestrator.pipeline.profiles.resolve import resolve_profile

    if (folder := run_folder(given.model, RUNS)) is not None:
        base = of_run(folder, RunDir(folder).newest_model().resolve())
    else:
        kinds = f"no model directory (it has no config.json), no run in {RUNS}"
        source = model_source(given.model, kinds=kinds)
        base = merge(of_model(source), {"envs": {"math": {}}, "stages": ["init", "rl"]})
    if given.env is not None:
        name, _, data = given.env.partition("=")
        base = with_envs(base, EvalRequest(overrides={}, envs={name: data or None}, presets={}))
    found: dict[str, Any] = {"name": "parity-of-a-model"} | base
    return make_config(resolve_profile(overridden(found, given.overrides)))


def sampling_of(config: Config) -> Sampling:
    """Return the sampling of the first stage that trains on sampled answers, or the default."""
    for instance in config.instances:
        settings = config.settings(instance)
        if isinstance(settings, LoopConfig):
            return settings.sampling
    return PLAIN


def _prompts(given: argparse.Namespace, config: Config, tokenizer: "PreTrainedTokenizerBase") -> "list[Prompt]":
    from temper.orchestrator.tools.debug.parity.prompts import builtin_prompts, env_prompts
    from temper.rollout.episodes.renderer import Renderer

    if given.env is not None:
        env = config.environments[given.env.partition("=")[0]]
        return env_prompts(env, Renderer(tokenizer, config.rollout.thinking), seed=config.seed)
    return builtin_prompts(tokenizer)
