"""The command `serve`: a model behind an OpenAI-compatible server whose requests may limit their thoughts."""

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from temper.orchestrator.cli.arguments import add_command, model_directory, path_of_run

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

OPTIONS: dict[str, tuple[type, str, str]] = {
    "host": (str, "ADDRESS", "where to listen; 127.0.0.1, this machine alone"),
    "port": (int, "N", "where to listen; 8000"),
    "dtype": (str, "NAME", "precision of the weights; float32 on a CPU, else that of the model's files"),
    "max_model_len": (int, "TOKENS", "longest sequence, prompt included; the model's own"),
    "threads": (int, "N", "CPU threads of the engine; 1"),
    "memory_gib": (int, "GIB", "size of the key-value cache on a CPU; 1"),
    "gpu_memory_utilization": (float, "SHARE", "share of a GPU's memory that the engine may take; 0.9"),
    "reasoning_parser": (
        str,
        "NAME",
        "vLLM's parser that tells thought from answer; that of the model's thinking tags",
    ),
    "tool_call_parser": (str, "NAME", "vLLM's parser of tool calls, such as hermes; the format of the model's family"),
}
"""Settings of `ServerConfig`: type, what stands for the value, and help with the default."""
THINKING_OPTIONS: dict[str, tuple[type, str, str]] = {
    "grace": (int, "TOKENS", "in which the model may finish its line after a budget; that of the run, else 0"),
    "closing": (str, "TEXT", "closes a thought; that of the run, else of the chat template"),
}
"""Settings of `ThinkingConfig`, likewise; a run's folder brings its own `rollout.thinking`."""
KEY_VARIABLE = "VLLM_API_KEY"
EPILOG = """examples:
  temper serve runs/demo
  temper serve models/mine --port 8001 --max-model-len 8192 --closing "</think>"

a chat request may carry, beside what vLLM takes (extra_body of the openai client):
  "thinking_budget": 64     the thought is closed after so many tokens; 0 or more, null is no limit
  "thinking_grace": 16      in place of --grace
  "thinking": false        an answer without a thought; true: with one; "low": the prompt asks for little thought

clients give the key that VLLM_API_KEY holds here, where it is set; without one the server listens on loopback only
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
    told = "tell budgets to the model, in the prompt; as the run did, else not"
    command.add_argument("--announce", action=argparse.BooleanOptionalAction, help=told, default=argparse.SUPPRESS)
    answered = (
        "answer prompts of one text or of token ids too (/v1/completions); they can forge turns: for trusted clients"
    )
    command.add_argument("--raw-prompts", action="store_true", help=answered)


def load_thinking_settings(given: Path) -> dict[str, Any]:
    """Return the settings of the thoughts in the rollouts of the run whose folder `given` is; none for a model directory."""
    path = given / "config.yaml"
    if (given / "config.json").is_file() or not path.is_file():
        return {}
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    thinking: dict[str, Any] = config["rollout"]["thinking"]
    return thinking


def require_key(host: str, environment: Mapping[str, str]) -> None:
    """Raise `ValueError` where other machines could reach the server and it would ask for no key."""
    from temper.envs.remote.client import is_loopback

    if not is_loopback(host) and not environment.get(KEY_VARIABLE):
        raise ValueError(
            f"--host {host} is reached from other machines, and {KEY_VARIABLE} is not set: set it to a key that clients must "
            f"give, or listen at 127.0.0.1 behind a proxy of your own"
        )


def _serve(given: argparse.Namespace) -> int:
    model = model_directory(given.model)
    if "host" in given:
        require_key(given.host, os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)  # until the server listens and stops by itself
    try:
        status = _serve_model(model, given)
        sys.stdout.flush()
        os._exit(status)  # all is closed; an ordinary end prints pages of leaks that Triton's bindings believe in
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
    return serve(model, ServerConfig(thinking=thinking, **options), name=str(given.model))


def _stop(number: int, frame: object) -> None:
    raise SystemExit(130)  # a KeyboardInterrupt is swallowed where vLLM waits for its engine, and the wait never ends
