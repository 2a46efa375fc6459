"""The customer of the shop: a list of replies, or a model that plays the instruction of the row."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from temper.envs.core.bounds import require_known
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.http_client import Server, request_chat
from temper.envs.core.task import Task
from temper.envs.core.turn_text import CLOSE_THINKING

OPENING = "Hello."
"""The first message of a customer that the options name. It is the same for all rows."""
USER_REPLY = "Yes, please go ahead. I have nothing to add."
USER_REPLIES = 1
SCRIPT = "script"
STOP = "###STOP###"
"""Marks the reply with which a customer ends the dialogue."""
ENDPOINT = ("url", "model", "key_variable", "hosts", "timeout_s", "retries")
TIMEOUT_S = 60.0
TRIES = 2
MAX_TOKENS, MAX_CHARACTERS, MAX_DIALOGUE = 2048, 4096, 32_768
"""Limits of a reply, of a text in the dialogue, and of the dialogue."""
ROLE = (
    "You play a customer who talks to a service agent. You have just greeted the agent. These are your instructions:\n\n"
    "<instructions>\n{instruction}\n</instructions>\n\n"
    "Write only the customer's next message, in a few words of your own. Stay in the role, even if the agent asks you to "
    "leave it. Go one step at a time: say first what you want, and give a detail only when the agent asks for it. Never "
    "invent a detail that the instructions lack: say that you do not know it. Never quote the instructions. Once the agent "
    f"has done all that you want, or has told you that it cannot, write {STOP} and nothing else."
)


class Customer(Protocol):
    def reply(self, text: str) -> str:
        """Return the reply to the agent's text. A reply with `STOP` ends the dialogue, and so does an empty one."""
        ...


class ScriptedCustomer:
    """Gives these replies, then ends the dialogue."""

    def __init__(self, replies: Iterable[str]) -> None:
        self._replies = iter(replies)

    def reply(self, text: str) -> str:
        return next(self._replies, STOP)


class ModelCustomer:
    """A model behind an OpenAI-compatible server. It reads its instruction and the dialogue with the roles swapped."""

    def __init__(self, instruction: str, settings: Mapping[str, Any]) -> None:
        self._server, self._model = customer_server(settings), settings["model"]
        self._messages = [{"role": "system", "content": ROLE.format(instruction=instruction)}]

    def reply(self, text: str) -> str:
        """Return the reply, empty after a dialogue of `MAX_DIALOGUE` characters, since its agent could exceed the model's
        context. Raise `EnvironmentFault` if the server fails, or gives two empty replies.
        """
        self._messages.append({"role": "user", "content": text[:MAX_CHARACTERS]})
        if sum(len(message["content"]) for message in self._messages) > MAX_DIALOGUE:
            return ""
        body = {"model": self._model, "messages": self._messages, "max_tokens": MAX_TOKENS}
        for _ in range(TRIES):
            reply = request_chat(self._server, body).text.rpartition(CLOSE_THINKING)[2].strip()[:MAX_CHARACTERS]
            if reply:
                self._messages.append({"role": "assistant", "content": reply})
                return reply
        raise EnvironmentFault("the customer gave two empty replies")


def is_model(customer: Any) -> bool:
    """Return whether the option names a model, not a script."""
    return isinstance(customer, Mapping)


def has_simulated_customer(task: Task) -> bool:
    """Return whether the options name a customer, who ends the dialogue of a right episode."""
    return "customer" in task.env.options


def open_customer(task: Task) -> Customer:
    """Return a new customer of a task. Without the option the prompt is the instruction, and the customer agrees."""
    settings, instruction = task.env.settings, str(task.request[-1]["content"])
    match task.env.options.get("customer"):
        case None:
            return ScriptedCustomer([USER_REPLY] * ((settings.max_turns or 0) if settings.scripted else USER_REPLIES))
        case str():
            return ScriptedCustomer([instruction, *[USER_REPLY] * USER_REPLIES])
        case endpoint:
            return ModelCustomer(instruction, endpoint)


def check_customer(given: Any) -> None:
    """Raise `ValueError` unless this is a valid option: None, `script`, or the settings of an endpoint."""
    if given in (None, SCRIPT):
        return
    if not isinstance(given, Mapping):
        raise ValueError(f"options.customer is {given!r:.80}; set {SCRIPT}, or url and model of a server")
    require_known(given, ENDPOINT, "options.customer")
    for name in ("url", "model"):
        if not isinstance(given.get(name), str) or not given[name]:
            raise ValueError(f"options.customer.{name} is {given.get(name)!r:.80}; set url and model of a server")
    customer_server(given)


def customer_server(settings: Mapping[str, Any]) -> Server:
    """Return the server. Raise `ValueError` for an address that is not allowed, and for a missing key."""
    return Server.from_options(
        {"timeout_s": TIMEOUT_S} | {name: value for name, value in settings.items() if name != "model"}
    )
