"""An endpoint for agents: vLLM's routes over a rollout worker's engine, whose requests become turns of episodes.

It listens on loopback. Each episode has its own key, which identifies it.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from pathlib import Path
from typing import Any

import uvicorn
from starlette.middleware import Middleware
from vllm.entrypoints.launchers.launcher import NoSignalServer
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers.params import TokenizeParams
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from temper.envs.agents import Endpoint
from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BLANK_LINES
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.episodes.agent_session import AgentRequest, AgentSession
from temper.rollout.escaping import Escaper
from temper.rollout.formats.find import find_format
from temper.rollout.formats.messages import with_line
from temper.rollout.formats.turn_format import TurnFormat
from temper.rollout.serving.middleware import (
    CHAT,
    RESPONSES,
    App,
    Scope,
    ThinkingMiddleware,
)
from temper.rollout.serving.request import ThinkingRules, load_thinking_rules, require_callable, with_variables
from temper.rollout.serving.server import CONNECTIONS, READY_CHECK_S, app_arguments, build_routes
from temper.rollout.tokenizer import load_tokenizer

HOST = "127.0.0.1"
NAME = "model"
"""The name of the served model."""
UNLIMITED_LENGTH = 2**30
"""The longest sequence for vLLM's routes: the episode's own limit counts."""
INPUT, MESSAGES = "input", "messages"
"""The keys of a conversation in a request to `RESPONSES`, and in any other."""
FORMS = (
    "use_beam_search",
    "logprobs",
    "structured_outputs",
    "bad_words",
    "allowed_token_ids",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "truncate_prompt_tokens",
)
"""Options that change the form of an answer, or the prompt behind its text, by which later turns continue it. They and vLLM's
former `guided_` options are refused if they are set.
"""
SESSION: ContextVar[AgentSession] = ContextVar("SESSION")
TOOLS: ContextVar[tuple[Tool, ...]] = ContextVar("TOOLS", default=())
IS_TURN: ContextVar[bool] = ContextVar("IS_TURN", default=False)
"""The episode of the request that this task serves, the tools that the request offers, and whether it samples a turn."""
TURNS = (CHAT, RESPONSES, "/v1/messages")
logging.getLogger("vllm.entrypoints.anthropic.api_router").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], RefusedRequest))
)  # it logs each refusal with its traceback


class VllmAgentServer:
    """An `AgentServer` over vLLM's engine. It starts with its first episode."""

    def __init__(self, llm: AsyncLLM, model: Path, thinking: ThinkingConfig) -> None:
        self._llm = llm
        self._model = model
        self._thinking = thinking
        self._sessions: dict[str, AgentSession] = {}
        self._starting = asyncio.Lock()
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._url = ""

    @asynccontextmanager
    async def open(self, session: AgentSession) -> AsyncIterator[Endpoint]:
        """See `AgentServer.open`. Requests after the block are refused."""
        async with self._starting:
            if self._server is None:
                await self._start()
        assert self._server is not None
        key = secrets.token_urlsafe(32)
        self._sessions[key] = session
        try:
            yield Endpoint(url=self._url, key=key, model=NAME)
        finally:
            del self._sessions[key]
            connections: list[Any] = list(self._server.server_state.connections)
            for connection in connections:
                if connection.client in session.clients:  # an agent may leave them open
                    connection.shutdown()

    async def close(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._task

    async def _start(self) -> None:
        tokenizer = load_tokenizer(self._model)
        guard = Middleware(
            EpisodeMiddleware,
            sessions=self._sessions,
            rules=load_thinking_rules(tokenizer, self._thinking),
            escaper=Escaper(tokenizer),
            longest_token=self._llm.get_tokenizer().max_chars_per_token,
        )
        form = find_format(tokenizer)
        arguments = app_arguments(self._model, form, name=NAME)
        arguments.api_key = [""]  # each episode has a key, so that of a served model does not count
        tasks = await self._llm.get_supported_tasks()
        engine: Any = EpisodeEngine(self._llm, form)
        app = await build_routes(engine, arguments, tasks, guard, form)
        listener = socket.create_server((HOST, 0))
        server = NoSignalServer(uvicorn.Config(app, log_level="error", lifespan="off", **CONNECTIONS))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            if task.done():
                raise RuntimeError("the endpoint of agents ended at its start") from task.exception()
            await asyncio.sleep(READY_CHECK_S)
        self._url = f"http://{HOST}:{listener.getsockname()[1]}/v1"
        self._server, self._task = server, task


class EpisodeEngine:
    """vLLM's engine for its routes. Each request becomes a turn of an episode.

    Only `max_tokens` and `stop` of its sampling parameters have an effect.
    """

    def __init__(self, llm: AsyncLLM, form: TurnFormat) -> None:
        self._llm = llm
        self._form = form
        self.model_config = copy(llm.model_config)
        self.model_config.max_model_len = UNLIMITED_LENGTH
        self.renderer = copy(llm.renderer)
        self.renderer._tokenize_prompt_async = self._tokenize

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def _tokenize(self, prompt: dict[str, Any], params: TokenizeParams) -> dict[str, Any]:
        """Tokenize a prompt in vLLM's thread, except for the turn that it continues, whose tokens are known.

        Raise `LimitReached` before a stream starts, because it can't change its status later.
        """
        before, rest = ([], prompt["prompt"]) if params.add_special_tokens else SESSION.get().split(prompt["prompt"])
        made = await self._llm.renderer._tokenize_prompt_async({**prompt, "prompt": rest}, params)
        ids = before + made["prompt_token_ids"]
        if IS_TURN.get():
            SESSION.get().check(len(ids))
        return {**made, "prompt": prompt["prompt"], "prompt_token_ids": ids}

    async def generate(
        self, prompt: dict[str, Any], sampling_params: SamplingParams, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield the whole turn."""
        stop = sampling_params.stop or ()
        request = AgentRequest(
            ids=tuple(prompt["prompt_token_ids"]),
            text=prompt.get("prompt", ""),  # vLLM writes the prompts of gpt-oss as ids
            tools=TOOLS.get(),
            # Without a limit vLLM sets the rest of the longest sequence.
            max_tokens=None if sampling_params.max_tokens > UNLIMITED_LENGTH // 2 else sampling_params.max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )
        session = SESSION.get()
        reply = await session.answer(request)
        text, ids, tags = reply.text, list(reply.completion.token_ids), self._form.tags
        if tags is not None and session.thinking.on and reply.readable and tags.closing not in text:
            # An answer without a thought: vLLM's parsers would take it for a thought without an end.
            text = tags.closing + text
            ids = self._llm.get_tokenizer().encode(tags.closing, add_special_tokens=False) + ids
        if tags is not None and tags.closing in text:
            thought, answer = text.rsplit(tags.closing, 1)
            text = thought + tags.closing + BLANK_LINES.sub("", answer)
        output = CompletionOutput(
            index=0,
            text=text,
            token_ids=ids,
            cumulative_logprob=None,
            logprobs=None,
            finish_reason="stop" if reply.completion.finished else "length",
        )
        yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [output], finished=True)


class EpisodeMiddleware(ThinkingMiddleware):
    """Gives each request to the episode of its key, and sets the episode's mode of thinking."""

    def __init__(
        self, app: App, sessions: dict[str, AgentSession], rules: ThinkingRules, escaper: Escaper, longest_token: int
    ) -> None:
        """`longest_token` is the most characters of a token."""
        super().__init__(app, rules, escaper, raw_prompts=False)
        self._notice = rules.thinking.notice
        self._sessions = sessions
        self._longest_token = longest_token

    def _has_key(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        key = bearer if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        session = self._sessions.get(key.decode("latin-1"))
        if session is None:
            return False
        SESSION.set(session)
        session.clients.add(scope["client"])
        return True

    def _check(self, body: dict[str, Any]) -> None:
        given = body.get(MESSAGES) or body.get(INPUT)
        SESSION.get().check(count_characters(given) // self._longest_token, is_turn=False)

    def _prepare(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        require_plain(body)
        require_callable(body, self._rules)
        thinking = SESSION.get().thinking
        TOOLS.set(read_tools(body))
        IS_TURN.set(path in TURNS)
        body = with_first_notice(body, INPUT if path == RESPONSES else MESSAGES, self._notice(thinking))
        return with_variables(body, thinks=thinking.on)


def count_characters(messages: Any) -> int:
    """Return the number of characters in messages, without the model's, whose reasoning a template may drop."""
    if isinstance(messages, str):
        return len(messages)
    if isinstance(messages, list):
        return sum(map(count_characters, messages))
    if not isinstance(messages, dict) or messages.get("role") == "assistant" or messages.get("type") == "reasoning":
        return 0
    return sum(count_characters(messages.get(key)) for key in ("content", "text", "output"))


def with_first_notice(body: dict[str, Any], key: str, notice: str) -> dict[str, Any]:
    """Return the body with a notice at the end of its first user message. Later requests repeat that message."""
    given = body.get(key)
    if not notice:
        return body
    if isinstance(given, str):
        return body | {key: f"{given}\n{notice}"}
    kind = "input_text" if key == INPUT else "text"
    messages: list[Any] = given if isinstance(given, list) else []
    for at, message in enumerate(messages):
        match message:
            case {"role": "user", "content": str() | list()}:
                return body | {key: [*messages[:at], with_line(message, notice, kind=kind), *messages[at + 1 :]]}
    raise RefusedRequest(f"there is no user message for the notice {notice!r}", parameter=key)


def require_plain(body: dict[str, Any]) -> None:
    """Raise `RefusedRequest` for several answers, for log-probabilities, and for a form that sampling would have to enforce."""
    choice = body.get("tool_choice")
    forms = [body.get("response_format"), *(_inner(body, key, "format") for key in ("text", "output_config"))]
    refused = {
        **{key: bool(value) for key, value in body.items() if key in FORMS or key.startswith("guided_")},
        "n": body.get("n") not in (None, 1),
        "prompt_logprobs": body.get("prompt_logprobs") is not None,
        "tool_choice": (choice.get("type") if isinstance(choice, dict) else choice) not in (None, "auto", "none"),
        "response_format": any(isinstance(form, dict) and form.get("type") != "text" for form in forms),
    }
    if any(refused.values()):
        name = next(key for key, value in refused.items() if value)
        raise RefusedRequest(
            f"{name}: a training episode samples one answer in the model's own form; remove it", parameter=name
        )


def _inner(body: dict[str, Any], outer: str, inner: str) -> Any:
    given = body.get(outer)
    return given.get(inner) if isinstance(given, dict) else None


def read_tools(body: dict[str, Any]) -> tuple[Tool, ...]:
    """Return the functions that a request offers, in any of the three forms. Others are left to vLLM."""
    given = body.get("tools")
    offered = [one.get("function", one) for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    return tuple(
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "parameters": one.get("parameters") or one.get("input_schema") or {"type": "object", "properties": {}},
            },
        }
        for one in offered
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    )
