"""Rows of NeMo-Gym's data as tasks."""

import re
from typing import Any

from temper.envs.core.row_format import field
from temper.envs.core.task import Task
from temper.envs.remote.responses_api import messages_of, tools_of

PARAMS = "responses_create_params"
ROUTES = ("seed_session", "verify", "reset", "step", "close", "aggregate_metrics", "reverify_mode", "mcp")
"""Routes of the servers themselves: no tool may be called so."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


def load(row: dict[str, Any]) -> Task:
    """Make a task of a row. Raise `ValueError` for a prompt or a tool that can't be shown."""
    params = field(row, PARAMS, dict)
    tools = tools_of(params)
    for tool in tools:
        name = tool["function"]["name"]
        if not TOOL_NAME.fullmatch(name) or name in ROUTES:
            raise ValueError(f"field '{PARAMS}.tools' has a tool {name!r}, which is no route of its own on the server")
    return Task(messages=messages_of(params), spec={"row": row}, tools=tools)
