"""Translates the thinking options of a request to vLLM's arguments. Pure functions of JSON bodies.

A chat request may have these keys besides vLLM's:

    thinking_budget   tokens of thinking, 0 or more; null is no limit
    thinking_grace    tokens after the budget in which the model may finish its line; default: the server's
    thinking          true, false (no thinking) or "low" (the prompt asks for low effort)

They become extra arguments of the logits processor, arguments of the chat template, and a notice in the last user message.
Bodies that vLLM itself refuses are passed on unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.envs.core.thinking_mode import LOW_EFFORT, up_to
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import BUDGET, GRACE, RefusedRequest, ThinkingTags, check_extra_args, format_value
from temper.rollout.episodes.renderer import Renderer, with_notice
from temper.rollout.formats.messages import thinking_variables

THINKING, LOW = "thinking", "low"
Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingRules:
    """Capabilities and settings of the served model."""

    thinking: ThinkingConfig
    default_budget: int | None = None
    """Thinking tokens of a request that names no budget, if it thinks. None sets no limit."""
    closing: str = ""
    """Text that ends the thinking. Requests can't change it."""
    no_budget: str = ""
    """Why budgets are not available, or ""."""
    no_switch: str = ""
    """Why thinking can't be switched off, or ""."""
    no_calls: str = ""
    """Why tool calls are not available, or ""."""


def load_thinking_rules(tokenizer: PreTrainedTokenizerBase, thinking: ThinkingConfig) -> ThinkingRules:
    """Return a model's capabilities, from its tokenizer and chat template. Raises `ValueError` for a closing without the
    tag.
    """
    closing = no_budget = no_switch = ""
    try:
        closing = ThinkingTags(tokenizer, closing=thinking.closing).closing
    except ValueError as error:
        if thinking.closing is not None:
            raise
        no_budget = _reason(error)
    renderer = Renderer(tokenizer)
    try:
        renderer.check_modes()
    except ValueError as error:
        no_switch = _reason(error)
    form = renderer.format
    return ThinkingRules(
        thinking=thinking,
        closing=closing,
        no_budget=no_budget,
        no_switch=no_switch,
        no_calls="" if form.reads_calls else form.no_calls,
    )


def _reason(error: ValueError) -> str:
    """Return the error without its remedy, which is about a run's configuration."""
    return str(error).partition(";")[0]


def require_callable(body: Body, rules: ThinkingRules) -> None:
    """Raise `RefusedRequest` for tools that the model can't call."""
    if rules.no_calls and body.get("tools") and body.get("tool_choice") != "none":
        raise RefusedRequest(
            f"tools are given, but {rules.no_calls}; remove them, or start the server with a --tool-call-parser",
            parameter="tools",
        )


def rewrite_request(body: Body, rules: ThinkingRules) -> Body:
    """Return the body with vLLM's arguments; the same object if it does not mention thinking.

    Raises `RefusedRequest` for an invalid value, and for missing capabilities.
    """
    require_callable(body, rules)
    thinks = body.get(THINKING)
    if not (thinks is None or isinstance(thinks, bool) or thinks == LOW):
        raise RefusedRequest(
            f'{THINKING} is {format_value(thinks)}; it must be true, false or "{LOW}"', parameter=THINKING
        )
    limit = _limit(body, rules, thinks)
    if limit is None and thinks is None:
        return body
    new = {key: value for key, value in body.items() if key not in (BUDGET, GRACE, THINKING)}
    messages = body.get("messages")
    if thinks is not None:
        if thinks is False and rules.no_switch:
            raise RefusedRequest(f"{THINKING} is false, but {rules.no_switch}", parameter=THINKING)
        new = with_variables(new, thinks=bool(thinks))
        if thinks == LOW:
            messages = _add_notice(messages, rules.thinking.notice(LOW_EFFORT))
    if limit is not None:
        _check_limit(body, limit, thinks)
        new["vllm_xargs"] = {**_mapping(body, "vllm_xargs"), **limit}
        messages = _add_notice(messages, rules.thinking.notice(up_to(limit[BUDGET])))
    return {**new, "messages": messages}


def with_variables(body: Body, *, thinks: bool) -> Body:
    """Return the body with the template variables of a mode. `set_modes` adds the system text of families that need one."""
    variables = {**_mapping(body, "chat_template_kwargs"), **thinking_variables(thinks=thinks)}
    return body | {"chat_template_kwargs": variables}


def _limit(body: Body, rules: ThinkingRules, thinks: bool | str | None) -> dict[str, Any] | None:
    """Return the extra arguments of the limit. None without a budget. Plain keys override `vllm_xargs`."""
    given = _mapping(body, "vllm_xargs")
    plain = {name: body[name] for name in (BUDGET, GRACE) if body.get(name) is not None}
    limit: dict[str, Any] = {GRACE: rules.thinking.grace}
    limit |= {name: given[name] for name in (BUDGET, GRACE) if name in given} | plain
    check_extra_args({**given, **limit})
    is_set = BUDGET in limit or BUDGET in body
    can_limit = _thinks(body, thinks) and not body.get("use_beam_search")
    if rules.default_budget is not None and can_limit and not is_set:
        limit[BUDGET] = rules.default_budget
    if BUDGET not in limit:
        return None
    if rules.no_budget:
        raise RefusedRequest(
            f"{BUDGET} is {limit[BUDGET]}, but budgets are not available: {rules.no_budget}", parameter=BUDGET
        )
    return limit


def _check_limit(body: Body, limit: Mapping[str, Any], thinks: bool | str | None) -> None:
    """Raise `RefusedRequest` if there is no thinking to limit."""
    if not _thinks(body, thinks):
        raise RefusedRequest(
            f"{BUDGET} is {limit[BUDGET]} while thinking is off; remove it or switch thinking on", parameter=BUDGET
        )
    if body.get("use_beam_search"):
        raise RefusedRequest(f"{BUDGET} does not work with use_beam_search; sample instead", parameter=BUDGET)


def _thinks(body: Body, thinks: bool | str | None) -> bool:
    given = _mapping(body, "chat_template_kwargs")
    switches = [given[name] for name in thinking_variables(thinks=True) if name in given]
    switched = all(switches) if switches else body.get("reasoning_effort") != "none"
    return bool(switched if thinks is None else thinks)


def _mapping(body: Body, key: str) -> Mapping[str, Any]:
    value = body.get(key)
    if not (value is None or isinstance(value, dict)):
        raise RefusedRequest(f"{key} is {format_value(value)}; it must be an object", parameter=key)
    return value or {}


def _add_notice(messages: Any, notice: str) -> Any:
    """Return the messages with a notice at the end of the last user message. Its content may be text or a list of parts."""
    if not notice or not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        return messages
    users = [number for number, message in enumerate(messages) if message.get("role") == "user"]
    if not users:
        raise RefusedRequest(f"there is no user message for the notice {notice!r}", parameter="messages")
    if not isinstance(messages[users[-1]].get("content"), str | list):
        return messages
    return with_notice(messages, notice)
