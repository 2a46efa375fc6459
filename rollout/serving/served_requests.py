"""Which requests the server answers, and what their texts may not do. Pure functions of paths and JSON bodies.

A conversation comes as messages, and the server writes the turns: the tags in all its texts are broken, as in rollouts. A
raw prompt is a whole conversation in one text, or in token ids, so that whoever writes it writes the turns too, and the
thoughts; nothing in it can be told apart. It is answered only where whoever serves the model trusts those who ask.
"""

import json
from http import HTTPStatus
from typing import Any

from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.escaping import Escaper

CHAT = "/v1/chat/completions"
CONVERSATIONS = (CHAT, f"{CHAT}/batch", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
RAW_PROMPTS = ("/v1/completions",)
UNCHANGED = ("/tokenize", "/detokenize")
"""What asks the model nothing."""
EXACT = ("model", "stop", "stop_sequences", "bad_words", "response_format", "structured_outputs", "vllm_xargs")
"""What of a body never becomes part of a prompt, and means something else where it is altered."""
MESSAGES = ("messages", "input")
READS = ("GET", "HEAD", "OPTIONS")


def require_served(method: str, path: str, *, raw_prompts: bool) -> None:
    """Raise `RefusedRequest` for a raw prompt where those are not answered, and for a path that is none of the above.

    Among the latter are those by which vLLM is administered, some of which ask for no key.
    """
    if method in READS or path in CONVERSATIONS or path in UNCHANGED or (raw_prompts and path in RAW_PROMPTS):
        return
    if path in RAW_PROMPTS:
        raise RefusedRequest(
            f"raw prompts are not answered, since they could forge any turn: send messages to {CHAT}, or have the server "
            f"started with --raw-prompts",
            status=HTTPStatus.FORBIDDEN,
        )
    raise RefusedRequest(f"{method} {path} is not served", status=HTTPStatus.NOT_FOUND)


def read_conversation(content: bytes, escaper: Escaper) -> dict[str, Any] | None:
    """Return the body of a conversation with the tags in its texts broken; None for what is no JSON object, which vLLM refuses.

    Raises `RefusedRequest` for what can't be read or made harmless.
    """
    try:
        body = json.loads(content)
    except RecursionError as error:
        raise RefusedRequest("the body is nested too deeply") from error
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    try:
        return {key: _escaped(key, value, escaper) for key, value in body.items()}
    except RecursionError as error:
        raise RefusedRequest("the body is nested too deeply") from error
    except ValueError as error:
        raise RefusedRequest(str(error)) from error


def _escaped(key: str, value: Any, escaper: Escaper) -> Any:
    if key in EXACT:
        return value
    return escaper.messages(value) if key in MESSAGES else escaper.data(value)
