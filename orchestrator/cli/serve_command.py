"""The command `serve`: a model behind an OpenAI-compatible server whose requests may set a thinking budget."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from temper.orchestrator.cli.arguments import add_command, model_directory, path_of_run, port_number
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tracking.mlflow.dashboard import LOOPBACK, require_free_port

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

OPTIONS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "host": (str, "ADDRESS", "host to listen on (default: 127.0.0.1)"),
    "port": (port_number, "N", "port to listen on (default: 8000)"),
    "dtype": (str, "NAME", "precision of the weights (default: float32 on a CPU, else the model's)"),
    "max_model_len": (int, "TOKENS", "maximum tokens of prompt and answer (default: the model's)"),
    "threads": (int, "N", "CPU threads of the engine (default: 1)"),
    "memory_gib": (int, "GIB", "GiB of the key-value cache on a CPU (default: 1)"),
    "gpu_memory_utilization": (float, "SHARE", "share of GPU memory for the engine (default: 0.9)"),
    "reasoning_parser": (
        str,
        "NAME",
        "vLLM's reasoning parser (default: by the model's thinking tags)",
    ),
    "tool_call_parser": (str, "NAME", "vLLM's tool call parser, such as hermes (default: by the model's family)"),
}
"""Settings of `ServerConfig`: type, metavar, and help with the default."""
THINKING_OPTIONS: dict[str, tuple[type, str, str]] = {
    "grace": (int, "TOKENS", "tokens to finish the line after a budget (default: the run's, else 0)"),
    "closing": (str, "TEXT", "text that ends thinking (default: the run's, else the chat template's)"),
}
"""Settings of `ThinkingConfig`, with defaults from the run's `rollout.thinking`."""
KEY_VARIABLE = "VLLM_API_KEY"
EPILOG = """examples:
  temper serve runs/demo
  temper serve runs/demo --accuracy 0.95
  temper serve models/mine --port 8001 --max-model-len 8192 --closing "</think>"

additional fields of a chat request (extra_body of the openai client):
  "thinking_budget": 64     maximum thinking tokens, null for no limit
  "thinking_grace": 16      replaces --grace
  "thinking": false        no thinking; true: thinking; "low": the prompt requests little thinking

Clients need the key in VLLM_API_KEY if it is set. Without a key the server listens on loopback only.
"""


def add_serve_command(commands: "Commands") -> None:
    """Add the command to the parser."""
    text = "serve a model to OpenAI clients, with thinking budgets"
    command = add_command(commands, "serve", _serve, text, epilog=EPILOG)
    model = "a model directory, a name on the hub, or a run by folder or name: its newest model"
    command.add_argument("model", type=path_of_run, help=model)
    for name, (kind, shown, explained) in (OPTIONS | THINKING_OPTIONS).items():
        flag = f"--{name.replace('_', '-')}"
        command.add_argument(flag, type=kind, metavar=shown, help=explained, default=argparse.SUPPRESS)
    command.set_defaults(host=LOOPBACK, port=8000)
    command.add_argument("--name", help="the model's name for clients (default: as given)")
    shared = (
        "default thinking budget: the least from which on the model's curve keeps this share of its unlimited accuracy"
    )
    command.add_argument("--accuracy", type=float, metavar="SHARE", help=shared)
    help_text = "announce budgets in the prompt (default: as in the run, else no)"
    command.add_argument("--announce", action=argparse.BooleanOptionalAction, help=help_text, default=argparse.SUPPRESS)
    answered = "also serve /v1/completions. Its prompts can forge turns, so use it for trusted clients only"
    command.add_argument("--raw-prompts", action="store_true", help=answered)


def load_thinking_settings(given: Path) -> dict[str, Any]:
    """Return the thinking settings of the run in the folder `given`. None for a model directory."""
    path = given / "config.yaml"
    if (given / "config.json").is_file() or not path.is_file():
        return {}
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    thinking: dict[str, Any] = config["rollout"]["thinking"]
    return thinking


def least_budget(run: Path, share: float) -> int | None:
    """Return the budget for `--accuracy`, None if only unlimited thinking has it.

    Raise `ValueError` without a curve of the run's newest model.
    """
    from temper.orchestrator.evaluation.budget_curve import budget_for_accuracy
    from temper.orchestrator.evaluation.record import read_evaluations

    if not 0 < share <= 1:
        raise ValueError(f"--accuracy {share} must be above 0 and at most 1, a share of the unlimited accuracy")
    if not (run / "manifest.json").is_file():
        raise ValueError(f"--accuracy {share} needs a run that has accuracies under budgets, and {run} is a model")
    model, curves = RunDir(run).state().model, [one for one in read_evaluations(run / "eval") if one.curve]
    newest = next((one for one in reversed(curves) if one.model == model), None)
    if newest is None:
        others = ", ".join(str(one.model) for one in curves)
        raise ValueError(
            f"--accuracy {share} needs accuracies of {model} under budgets, and {run} has "
            f"{f'only those of {others}' if curves else 'none'}; evaluate it, for example with "
            f"`temper eval {shlex.quote(f'{run}/config.yaml')} 'eval.budgets=[16,32,64]'`"
        )
    budget = budget_for_accuracy(newest.curve, share)
    found = f"{budget} tokens"
    if budget is None:
        found = "none, since no budget surely keeps that accuracy; an evaluation with more tasks has narrower intervals"
    print(f"default thinking budget: {found} (evaluation of {newest.label})", flush=True)
    return budget


def require_key(host: str, environment: Mapping[str, str]) -> None:
    """Raise `ValueError` if other machines could reach the server without a key."""
    from temper.envs.core.http_client import is_loopback

    if not is_loopback(host) and not environment.get(KEY_VARIABLE):
        raise ValueError(
            f"--host {host} is reached from other machines, and {KEY_VARIABLE} is not set: set it to a key that clients must "
            f"send, or listen on 127.0.0.1 behind a proxy"
        )


def _serve(given: argparse.Namespace) -> int:
    model = model_directory(given.model)
    require_key(given.host, os.environ)
    require_free_port(given.port, host=given.host)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)  # until the server handles signals
    try:
        status = _serve_model(model, given)
        sys.stdout.flush()
        os._exit(status)  # everything is closed, and a normal exit prints false leak reports of Triton's bindings
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        print(f"fault: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _serve_model(model: Path, given: argparse.Namespace) -> int:
    # vLLM reads its environment while it is imported.
    from temper.rollout.engines.vllm_settings import prepare_environment

    prepare_environment()
    from temper.rollout.budget.config import ThinkingConfig
    from temper.rollout.serving.server import ServerConfig, serve

    options = {name: value for name, value in vars(given).items() if name in (*OPTIONS, "raw_prompts")}
    limits = {name: value for name, value in vars(given).items() if name in (*THINKING_OPTIONS, "announce")}
    thinking = ThinkingConfig(**{**load_thinking_settings(given.model), **limits})
    budget = None if given.accuracy is None else least_budget(given.model, given.accuracy)
    return serve(
        model, ServerConfig(thinking=thinking, default_budget=budget, **options), name=given.name or str(given.model)
    )


def _stop(number: int, frame: object) -> None:
    raise SystemExit(130)  # vLLM swallows a KeyboardInterrupt while it waits for its engine, and then waits forever
