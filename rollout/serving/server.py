"""An OpenAI-compatible server: vLLM's server, with thinking limits per request."""

import asyncio
import os
import signal
import socket
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.launcher import serve_http, setup_server
from vllm.logger import configure_logging_from_args
from vllm.renderers import BaseRenderer, ChatParams
from vllm.tasks import SupportedTask
from vllm.triton_utils import HAS_TRITON
from vllm.utils.argparse_utils import FlexibleArgumentParser

from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import CLOSING
from temper.rollout.engines.rollout_arguments import THINKING_PROCESSORS
from temper.rollout.engines.runners.choice import choose_runner, set_runner
from temper.rollout.engines.scratch_folder import ScratchFolder
from temper.rollout.engines.vllm_settings import ON_CPU, engine_arguments, limit_cpu
from temper.rollout.engines.vllm_worker import WorkerExtension
from temper.rollout.escaping import Escaper
from temper.rollout.formats.find import GENERATION, find_format, generation_text
from temper.rollout.formats.messages import mode_of_variables, set_mode
from temper.rollout.formats.turn_format import TurnFormat
from temper.rollout.serving import thought_parser
from temper.rollout.serving.family_parser import tool_parser
from temper.rollout.serving.middleware import CHAT, ThinkingMiddleware
from temper.rollout.serving.request import ThinkingRules, load_thinking_rules
from temper.rollout.tokenizer import load_tokenizer

READY_CHECK_S = 0.05
"""Seconds between two checks whether the server listens."""
GRACE_S = 5
"""Seconds in which requests may finish when the server stops."""
CONNECTIONS: dict[str, Any] = {
    "access_log": False,
    "timeout_graceful_shutdown": GRACE_S,
    "timeout_keep_alive": 24 * 3600,
}
"""uvicorn's settings. Connections stay open for a day, because a request fails if the server closes its connection while an
agent works between two requests."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How a model is served."""

    host: str = "127.0.0.1"
    """Address to listen on; the default is only local."""
    port: int = 8000
    """Port to listen on."""
    dtype: str = "float32" if ON_CPU else "auto"
    """Precision of the weights; auto is the precision of the model's files."""
    max_model_len: int | None = None
    """Longest sequence, prompt included, in tokens; null is the model's maximum."""
    threads: int = 1
    """CPU threads of the engine. Ignored on a GPU."""
    memory_gib: int = 1
    """Size of the key-value cache on a CPU, in GiB. Ignored on a GPU."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory that the engine may take. Ignored on a CPU."""
    reasoning_parser: str | None = None
    """vLLM's reasoning parser; null detects it."""
    tool_call_parser: str | None = None
    """vLLM's parser of tool calls; null uses the format of the model's family."""
    raw_prompts: bool = False
    """Whether to answer raw prompts, as text or token ids; their authors can forge any turn."""
    thinking: ThinkingConfig = field(default_factory=ThinkingConfig)
    default_budget: int | None = None
    """Thinking tokens of a request without a budget. Null sets no limit."""


def serve(model: Path, config: ServerConfig, *, name: str) -> int:
    """Serve a model directory under a name until SIGINT or SIGTERM. Return the exit status.

    Raises `FileNotFoundError` and `ValueError` for an unsuitable model, `RuntimeError` if the engine does not start.
    """
    tokenizer = load_tokenizer(model)
    form = find_format(tokenizer)
    rules = replace(load_thinking_rules(tokenizer, config.thinking), default_budget=config.default_budget)
    if config.default_budget is not None and rules.no_budget:
        raise ValueError(f"a thinking budget of {config.default_budget} is not available: {rules.no_budget}")
    if config.tool_call_parser is not None:
        rules = replace(rules, no_calls="")
    missing = (("thinking budgets", rules.no_budget), ("thinking=false", rules.no_switch), ("tools", rules.no_calls))
    for what, why in missing:
        if why:
            print(f"not available: {what}; {why}", flush=True)
    limit_cpu(threads=config.threads, memory_gib=config.memory_gib)
    with closing(ScratchFolder()) as scratch, scratch.use():
        (scratch.path / GENERATION).write_text(generation_text(model, tokenizer), encoding="utf-8")
        arguments = _arguments(model, config, rules, form, name=name, generation=scratch.path)
        return _listen(arguments, config, rules, form, Escaper(tokenizer), name=name)


def _listen(
    arguments: Namespace, config: ServerConfig, rules: ThinkingRules, form: TurnFormat, escaper: Escaper, *, name: str
) -> int:
    try:
        address, listener = setup_server(arguments, reuse_port=False)
    except KeyError as error:
        raise ValueError(str(error.args[0])) from error
    except OSError as error:
        raise ValueError(f"can't listen on {config.host}:{config.port} ({error}); use another --port") from error
    key = os.environ.get("VLLM_API_KEY") or None
    guard = Middleware(ThinkingMiddleware, rules=rules, escaper=escaper, raw_prompts=config.raw_prompts, key=key)
    line = _ready_line(name, address, budgets=not rules.no_budget)
    return asyncio.run(_serve(arguments, guard, listener, form, line=line))


def app_arguments(
    model: Path, form: TurnFormat, *, name: str, reasoning: str | None = None, calls: str | None = None
) -> Namespace:
    """Return the arguments of vLLM's routes for a model. Without names of the parsers they are the family's."""
    calls = tool_parser(form) if calls is None else calls
    reasoning = thought_parser.reasoning_parser(form) if reasoning is None else reasoning
    arguments: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    arguments.model, arguments.served_model_name = str(model), [name]
    arguments.tool_call_parser, arguments.enable_auto_tool_choice = calls or None, bool(calls)
    if form.tags is not None and reasoning:
        arguments.reasoning_parser = arguments.structured_outputs_config.reasoning_parser = reasoning
        arguments.reasoning_parser_plugin = thought_parser.__name__
    return arguments


async def build_routes(
    engine: EngineClient, arguments: Namespace, tasks: tuple[SupportedTask, ...], guard: Middleware, form: TurnFormat
) -> FastAPI:
    """Return vLLM's application over an engine. `guard` is its innermost middleware, after authentication."""
    engine.renderer = set_modes(engine.renderer, form)
    app = build_app(arguments, tasks, engine.model_config)
    app.user_middleware.append(guard)
    app.middleware_stack = app.build_middleware_stack()  # vLLM has already built it
    await init_app_state(engine, app.state, arguments, tasks)
    return app


def set_modes(renderer: BaseRenderer[Any], form: TurnFormat) -> BaseRenderer[Any]:
    """Return vLLM's renderer, which all routes share, with the family's system text for the mode in template variables."""
    if not (form.think or form.no_think):
        return renderer
    changed, render = copy(renderer), renderer.render_chat_async

    async def render_chat_async(conversations: Sequence[Any], chat_params: ChatParams, *more: Any, **named: Any) -> Any:
        thinks = mode_of_variables(chat_params.chat_template_kwargs)
        if thinks is not None:
            conversations = [set_mode(one, form.think if thinks else form.no_think) for one in conversations]
        return await render(conversations, chat_params, *more, **named)

    changed.render_chat_async = render_chat_async
    return changed


def _arguments(
    model: Path, config: ServerConfig, rules: ThinkingRules, form: TurnFormat, *, name: str, generation: Path
) -> Namespace:
    """Return the arguments of vLLM's server. `generation` is a folder with the generation configuration."""
    arguments = app_arguments(model, form, name=name, reasoning=config.reasoning_parser, calls=config.tool_call_parser)
    runner = choose_runner(triton=HAS_TRITON)
    set_runner(runner)
    values = {
        **engine_arguments(),
        "enable_prefix_caching": False,
        "use_tqdm_on_load": False,
        "host": config.host,
        "port": config.port,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "worker_extension_cls": f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
        "generation_config": str(generation),
    }
    if not rules.no_budget:
        values["logits_processors"] = [THINKING_PROCESSORS[runner]]
        values["additional_config"] = {CLOSING: rules.closing}
    for key, value in values.items():
        setattr(arguments, key, value)
    configure_logging_from_args(arguments)
    return arguments


async def _serve(
    arguments: Namespace, guard: Middleware, listener: socket.socket, form: TurnFormat, *, line: str
) -> int:
    stopped = asyncio.Event()
    async with build_async_engine_client(arguments) as engine:
        await engine.collective_rpc("end_with_parent")
        tasks = await engine.get_supported_tasks()
        app = await build_routes(engine, arguments, tasks, guard, form)
        watch = asyncio.create_task(_run_until_stopped(app, stopped, line))
        ended = await serve_http(
            app,
            sock=listener,
            host=arguments.host,
            port=arguments.port,
            log_level="warning",
            **CONNECTIONS,
        )
        watch.cancel()
    await ended
    listener.close()
    return 0 if stopped.is_set() else 1


async def _run_until_stopped(app: Starlette, stopped: asyncio.Event, line: str) -> None:
    """Print the ready line, and stop the server at SIGINT or SIGTERM, before its engine."""
    while not app.state.server.started:
        await asyncio.sleep(READY_CHECK_S)
    for number in (signal.SIGINT, signal.SIGTERM):  # vLLM's handlers end the engine first, which causes an error
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(line, flush=True)
    await stopped.wait()
    app.state.server.should_exit = True


def _ready_line(name: str, address: str, *, budgets: bool) -> str:
    """Return the server's address, with an example request."""
    limit = ', "thinking_budget": 64' if budgets else ""
    body = f'{{"messages": [{{"role": "user", "content": "2+2=?"}}]{limit}}}'
    return f"{name} at {address}/v1: curl {address}{CHAT} -H 'Content-Type: application/json' -d '{body}'"
