"""The shop's tools by name, and how a call is carried out."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.core.turn_text import BadCall, Call
from envs.retail import tools_read as read
from envs.retail import tools_write as write
from envs.retail.database import Database
from envs.retail.tools_read import Refusal

TRANSFER = "transfer_to_human_agents"
WRITING: dict[str, Callable[..., str]] = {
    tool.__name__: tool
    for tool in (
        write.cancel_pending_order,
        write.exchange_delivered_order_items,
        write.modify_pending_order_address,
        write.modify_pending_order_items,
        write.modify_pending_order_payment,
        write.modify_user_address,
        write.return_delivered_order_items,
    )
}
TOOLS: dict[str, Callable[..., str]] = WRITING | {
    tool.__name__: tool
    for tool in (
        read.calculate,
        read.find_user_id_by_email,
        read.find_user_id_by_name_zip,
        read.get_order_details,
        read.get_product_details,
        read.get_user_details,
        read.list_all_product_types,
        read.think,
        read.transfer_to_human_agents,
    )
}
PARAMETERS: dict[str, dict[str, Any]] = {
    name: {key: known.annotation for key, known in inspect.signature(tool).parameters.items() if key != "database"}
    for name, tool in TOOLS.items()
}
"""The type of every argument of every tool, `str` or `list[str]`; all of them are needed."""


def run_tool(database: Database, call: Call | BadCall) -> str:
    """Return what the tool answers. Raise `Refusal`, with nothing changed, for an unreadable or refused call."""
    if isinstance(call, BadCall):
        raise Refusal(call.error.removeprefix("error: "))
    if call.name not in TOOLS:
        raise Refusal("unknown tool")
    _check_arguments(PARAMETERS[call.name], call.arguments)
    return TOOLS[call.name](database, **call.arguments)


def _check_arguments(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    for key, kind in parameters.items():
        if key not in arguments:
            raise Refusal(f"missing argument {key}")
        value = arguments[key]
        if kind is str and not isinstance(value, str):
            raise Refusal(f"{key} must be a string")
        if kind is not str and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise Refusal(f"{key} must be a list of strings")
    if len(arguments) > len(parameters):
        raise Refusal(f"unknown argument; there are {', '.join(parameters) or 'none'}")


def replay(database: Database, actions: Sequence[Mapping[str, Any]]) -> list[int]:
    """Carry out actions (`name`, `arguments`) in order; return the indices of those that were refused."""
    refused = []
    for index, action in enumerate(actions):
        try:
            run_tool(database, Call(name=action["name"], arguments=action["arguments"]))
        except Refusal:
            refused.append(index)
    return refused
