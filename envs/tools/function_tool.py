"""A typed Python function as a tool. Its annotations and docstring give the schema. A call has a time-out."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from temper.envs.core.functions import load_function, run_function
from temper.envs.core.task import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function, sync or async, with its schema. A call longer than `timeout_s` is abandoned in its thread."""

    function: Callable[..., Any]
    declared: Tool
    timeout_s: float

    def schema(self, name: str) -> Tool:
        return self.declared

    def answer(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the result, as JSON unless it is a text. Raise `ValueError` for the model's mistake and for a time-out."""
        self._check(arguments)
        future: Future[Any] = Future()
        work = partial(_complete, future, partial(run_function, self.function, **arguments))
        threading.Thread(target=copy_context().run, args=(work,), name=f"tool {name}", daemon=True).start()
        if not wait([future], self.timeout_s).done:
            raise ValueError(f"{name} gave no result in {self.timeout_s:g} s")
        result = future.result()
        return result if isinstance(result, str) else json.dumps(result, default=str)

    def _check(self, arguments: dict[str, Any]) -> None:
        from temper.rewards.json_schemas import first_error  # imports slowly

        parameters = self.declared["function"]["parameters"]
        known = parameters["properties"]
        given = {
            key: value
            for key, value in arguments.items()
            if value is not None or not known.get(key, {}).get("nullable")
        }
        if (error := first_error(given, parameters | {"additionalProperties": False})) is not None:
            raise ValueError(error)


def _complete(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


@cache
def read_function_schema(name: str) -> Tool:
    """Return the schema of the function of this name. Raise `ValueError` if it has no annotations or no docstring."""
    from transformers.utils import get_json_schema

    function = load_function(name)
    try:
        schema = get_json_schema(function)["function"]
    except Exception as error:  # transformers' errors have no common base
        raise ValueError(
            f"{name} can't be a tool: {error}; annotate every argument, and describe the function and each argument under "
            f"`Args:` in its docstring"
        ) from error
    return {"type": "function", "function": {key: schema[key] for key in ("name", "description", "parameters")}}


def make_function_tool(name: str, *, timeout_s: float) -> FunctionTool:
    return FunctionTool(function=load_function(name), declared=read_function_schema(name), timeout_s=timeout_s)
